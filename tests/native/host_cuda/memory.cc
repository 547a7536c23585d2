// Barriers in shared memory, late copies, and what blocks of one cluster do to each other.
#include <algorithm>
#include <cstring>

#include "device.h"

namespace host_cuda {

// ------------------------------------------------------------------ barriers and copies
void barrier_init(uint64_t* bar, int count) {
  const Barrier b{static_cast<uint16_t>(count), static_cast<uint16_t>(count & 0x7fff), 0, 0};
  std::memcpy(bar, &b, sizeof b);
}
void barrier_arrive(uint64_t* bar, uint32_t expected_bytes) {
  maybe_yield();
  Barrier b = load(bar);
  if (b.pending == 0) fail("an mbarrier of %u gets one arrival too many", b.expected);
  b.bytes += static_cast<int32_t>(expected_bytes);
  b.pending = (b.pending - 1) & 0x7fff;
  store(bar, b, device.current->warp->block);
}
bool barrier_test(const uint64_t* bar, uint32_t parity) { return load(bar).phase != parity; }
bool barrier_wait(const uint64_t* bar, uint32_t parity) {
  if (barrier_test(bar, parity)) return true;
  device.current->waits_for = bar;
  device.current->warp->block->waiting.push_back(device.current);
  leave();
  return barrier_test(bar, parity);
}
namespace {
void require_aligned(const void* dst, const void* src, uint32_t bytes) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(dst) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(src) % 16 != 0)
    fail("a bulk copy of %u bytes is not aligned to 16", bytes);
}
Block* block_of_rank(int rank) {
  const uint32_t x = block_index().x;
  return device.blocks[x - x % device.cluster + static_cast<uint32_t>(rank)].get();
}
}  // namespace

void copy_async(void* dst, const void* src, uint32_t bytes, uint64_t* bar, bool poison) {
  require_aligned(dst, src, bytes);
  if (poison) std::memset(dst, kPoison, bytes);
  device.copies.push_back({dst, src, bytes, bar, device.current->warp->block, nullptr});
}
void store_async(void* dst, const void* src, uint32_t bytes) {
  require_aligned(dst, src, bytes);
  device.copies.push_back({dst, src, bytes, nullptr, nullptr, device.current});
}
void wait_for_stores() {
  const auto mine = [](const Copy& copy) { return copy.owner == device.current; };
  while (std::any_of(device.copies.begin(), device.copies.end(), mine)) pause_in_spin();
}

// ------------------------------------------------------------------ clusters
int cluster_rank() { return static_cast<int>(block_index().x % device.cluster); }
void sync_cluster() {
  const uint32_t i = block_index().x / device.cluster;
  const int n_threads =
      static_cast<int>(device.cluster * device.blocks[0]->warps.size() * kWarpLanes);
  const uint32_t turn = device.cluster_syncs[i];
  if (++device.in_cluster_sync[i] == n_threads) {
    device.in_cluster_sync[i] = 0, device.cluster_syncs[i]++;
    return;
  }
  while (device.cluster_syncs[i] == turn) pause_in_spin();
}
void* in_block_of(const void* place, int rank) {
  const auto offset = static_cast<const uint8_t*>(place) - shared_memory();
  if (offset < 0 || offset >= static_cast<ptrdiff_t>(block_of_rank(rank)->shared_bytes))
    fail("a place outside of shared memory is looked up in another block");
  return block_of_rank(rank)->shared + offset;
}
void arrive_in_cluster(uint64_t* bar, int rank) {
  maybe_yield();
  auto* there = static_cast<uint64_t*>(in_block_of(bar, rank));
  Barrier b = load(there);
  if (b.pending == 0) fail("an mbarrier of %u gets one arrival too many", b.expected);
  b.pending = (b.pending - 1) & 0x7fff;
  store(there, b, block_of_rank(rank));
}
void copy_to_cluster(void* dst, const void* src, uint32_t bytes, uint64_t* bar, uint32_t mask) {
  require_aligned(dst, src, bytes);
  for (int rank = 0; rank < static_cast<int>(device.cluster); rank++) {
    if ((mask >> rank & 1) == 0) continue;
    void* there = in_block_of(dst, rank);
    std::memset(there, kPoison, bytes);
    device.copies.push_back({there, src, bytes, static_cast<uint64_t*>(in_block_of(bar, rank)),
                             block_of_rank(rank), nullptr});
  }
}

}  // namespace host_cuda
