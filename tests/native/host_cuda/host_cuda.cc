// The scheduler of the emulated device: fibers, warps, barriers, late copies.
#include "host_cuda.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fiber.h"

namespace host_cuda {
namespace {

constexpr size_t kStackBytes = (20 << 10) + 192;  // not a power of two: they would share cache sets
constexpr uint64_t kMaxSwitches = 2'000'000'000;  // a launch that needs more does not end
constexpr int kPoison = 0xff;                     // NaN as float and as bf16
constexpr int kBurst = 64;                        // lanes of one warp that run one after the other
// One in so many: a lane gives way inside a load or store; a spinning warp looks again; a copy lands.
constexpr uint32_t kYieldOdds = 64, kLookOdds = 24, kLandOdds = 3;

struct Barrier {  // the 8 bytes of an mbarrier
  uint16_t expected;
  uint16_t pending : 15, phase : 1;
  int32_t bytes;
};
static_assert(sizeof(Barrier) == 8);

struct Warp;
struct Block;

struct Thread {
  Fiber fiber;
  Dim index, block_index;
  Warp* warp = nullptr;
  const uint64_t* waits_for = nullptr;  // an mbarrier
  bool spins = false;
};

struct Warp {
  Thread lanes[kWarpLanes];
  Block* block = nullptr;
  uint32_t alive = ~0u, ready = ~0u;
  bool listed = false;
  uint32_t arrived = 0, meetings = 0;
  std::source_location place;
  alignas(16) uint8_t slots[2][kWarpLanes][kSlotBytes];
};

struct Block {
  std::vector<std::unique_ptr<Warp>> warps;
  uint8_t* shared = nullptr;
  size_t shared_bytes = 0;
  int alive = 0, in_sync = 0;
  std::vector<Thread*> waiting;  // on mbarriers
  NamedBarrier named[16];
};

struct Copy {
  void* dst;
  const void* src;
  uint32_t bytes;
  uint64_t* bar;  // nullptr: a store
  Block* block;
  const Thread* owner;  // of a store
};

struct Device {
  std::vector<std::unique_ptr<Block>> blocks;
  uint32_t cluster = 1;
  std::vector<int> in_cluster_sync;     // threads, by cluster
  std::vector<uint32_t> cluster_syncs;  // that are over
  std::vector<Warp*> ready;
  std::vector<Thread*> spinning;
  std::vector<Copy> copies;
  Thread* current = nullptr;
  Context main{};
  Entry entry = nullptr;
  const void* context = nullptr;
  uint64_t seed = 1, state = 1, switches = 0;
  int alive = 0;
  std::string error;
};
Device device;

uint32_t dice(uint32_t sides) {  // xorshift64*
  uint64_t& s = device.state;
  s ^= s >> 12, s ^= s << 25, s ^= s >> 27;
  return static_cast<uint32_t>((s * 0x2545f4914f6cdd1dull) >> 33) % sides;
}

int lane_of(const Thread& t) { return static_cast<int>(&t - t.warp->lanes); }

void wake(Thread* t) {
  Warp* warp = t->warp;
  t->waits_for = nullptr, t->spins = false;
  warp->ready |= 1u << lane_of(*t);
  if (!warp->listed) warp->listed = true, device.ready.push_back(warp);
}

void leave() { switch_context(&device.current->fiber.context, device.main); }

// ------------------------------------------------------------------ barriers
Barrier load(const uint64_t* bar) {
  Barrier b;
  std::memcpy(&b, bar, sizeof b);
  if (b.expected == 0xffff) fail("an mbarrier is used before it is initialised");
  return b;
}
void store(uint64_t* bar, Barrier b, Block* block) {
  if (b.pending == 0 && b.bytes == 0) {
    b.phase ^= 1, b.pending = b.expected & 0x7fff;
    auto& waiting = block->waiting;
    for (size_t i = 0; i < waiting.size();) {
      if (waiting[i]->waits_for != bar) {
        i++;
        continue;
      }
      wake(waiting[i]);
      waiting[i] = waiting.back(), waiting.pop_back();
    }
  }
  std::memcpy(bar, &b, sizeof b);
}

void land_one() {
  const size_t i = dice(static_cast<uint32_t>(device.copies.size()));
  const Copy copy = device.copies[i];
  device.copies[i] = device.copies.back(), device.copies.pop_back();
  std::memmove(copy.dst, copy.src, copy.bytes);
  if (copy.bar == nullptr) return;
  Barrier b = load(copy.bar);
  b.bytes -= static_cast<int32_t>(copy.bytes);
  store(copy.bar, b, copy.block);
}

// ------------------------------------------------------------------ running
void finish_meeting(Warp& warp) {
  warp.arrived = 0;
  warp.meetings++;
}

void after_end(Warp& warp) {  // a thread ended: others may have waited for it
  if (warp.arrived != 0 && warp.arrived == warp.alive) {
    const uint32_t lanes = warp.arrived;
    finish_meeting(warp);
    for (int i = 0; i < kWarpLanes; i++)
      if (lanes >> i & 1) wake(&warp.lanes[i]);
  }
  Block& block = *warp.block;
  if (block.in_sync != 0 && block.in_sync == block.alive)
    fail("threads ended before __syncthreads");
}

void fiber_main() {
  device.entry(device.context);
  end_thread();
}

void run_lane(Thread& t) {
  device.current = &t;
  if (++device.switches > kMaxSwitches) fail("the launch does not end");
  switch_context(&device.main, t.fiber.context);
  device.current = nullptr;
}

void run_warp(Warp& warp) {
  for (int n = 1 + static_cast<int>(dice(kBurst)); n > 0 && warp.ready != 0; n--) {
    int i = static_cast<int>(dice(kWarpLanes));
    while ((warp.ready >> i & 1) == 0) i = (i + 1) % kWarpLanes;
    warp.ready &= ~(1u << i);
    run_lane(warp.lanes[i]);
    if (!device.error.empty()) return;
  }
}

// One spinning warp, or all of them and all waiters: a turn of their loops.
void look_again(bool everybody) {
  auto& spinning = device.spinning;
  if (spinning.empty() && !everybody) return;
  const Warp* chosen =
      everybody ? nullptr : spinning[dice(static_cast<uint32_t>(spinning.size()))]->warp;
  for (size_t i = 0; i < spinning.size();) {
    if (chosen != nullptr && spinning[i]->warp != chosen) {
      i++;
      continue;
    }
    wake(spinning[i]);
    spinning[i] = spinning.back(), spinning.pop_back();
  }
  if (!everybody) return;
  for (auto& block : device.blocks) {
    for (Thread* t : block->waiting) wake(t);
    block->waiting.clear();
  }
}

void describe_stuck() {
  for (auto& block : device.blocks)
    for (auto& warp : block->warps)
      if (warp->arrived != 0)
        fail("warp %u of block %u waits for lanes %08x in %s:%u", warp->lanes[0].index.x / 32,
             warp->lanes[0].block_index.x, warp->alive & ~warp->arrived, warp->place.file_name(),
             warp->place.line());
  fail("every thread waits for another");
}

void schedule() {
  while (device.alive > 0 && device.error.empty()) {
    if (!device.copies.empty() && (device.ready.empty() || dice(kLandOdds) == 0)) land_one();
    if (dice(kLookOdds) == 0) look_again(false);
    if (device.ready.empty()) {
      if (!device.copies.empty()) continue;
      look_again(true);
      if (device.ready.empty()) return describe_stuck();
    }
    const size_t i = dice(static_cast<uint32_t>(device.ready.size()));
    Warp* warp = device.ready[i];
    device.ready[i] = device.ready.back(), device.ready.pop_back();
    warp->listed = false;
    run_warp(*warp);
    if (warp->ready != 0 && !warp->listed) warp->listed = true, device.ready.push_back(warp);
  }
}

// Kept between launches: touching fresh pages costs more than running on them.
uint8_t* stack_memory(size_t bytes) {
  static uint8_t* memory = nullptr;
  static size_t size = 0;
  if (bytes <= size) return memory;
  if (memory != nullptr) munmap(memory, size);
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) std::abort();
  madvise(made, bytes, MADV_HUGEPAGE);
  memory = static_cast<uint8_t*>(made), size = bytes;
  return memory;
}

void make_block(uint32_t x, Dim size, size_t shared_bytes, uint8_t*& stacks) {
  auto block = std::make_unique<Block>();
  block->shared_bytes = (shared_bytes + 1023) / 1024 * 1024;
  block->shared = static_cast<uint8_t*>(std::aligned_alloc(1024, block->shared_bytes));
  std::memset(block->shared, kPoison, block->shared_bytes);
  block->alive = static_cast<int>(size.x);
  for (uint32_t w = 0; w < size.x / kWarpLanes; w++) {
    auto warp = std::make_unique<Warp>();
    warp->block = block.get();
    for (int i = 0; i < kWarpLanes; i++, stacks += kStackBytes) {
      Thread& t = warp->lanes[i];
      t.index = {w * kWarpLanes + static_cast<uint32_t>(i), 0, 0};
      t.block_index = {x, 0, 0};
      t.warp = warp.get();
      t.fiber.prepare(stacks, kStackBytes, &fiber_main);
    }
    warp->listed = true;
    device.ready.push_back(warp.get());
    block->warps.push_back(std::move(warp));
  }
  device.alive += block->alive;
  device.blocks.push_back(std::move(block));
}

}  // namespace

// ------------------------------------------------------------------ the calling fiber
const Dim& thread_index() { return device.current->index; }
const Dim& block_index() { return device.current->block_index; }
int lane() { return lane_of(*device.current); }
uint8_t* shared_memory() { return device.current->warp->block->shared; }

NamedBarrier& named_barrier(int id) { return device.current->warp->block->named[id]; }

void end_thread() {
  Warp& warp = *device.current->warp;
  warp.alive &= ~(1u << lane());
  warp.block->alive--, device.alive--;
  after_end(warp);
  leave();
  std::abort();  // nobody wakes an ended thread
}

void maybe_yield() {
  if (dice(kYieldOdds) != 0) return;
  wake(device.current);
  leave();
}

void pause_in_spin() {
  device.current->spins = true;
  device.spinning.push_back(device.current);
  leave();
}

void sync_block() {
  Block& block = *device.current->warp->block;
  if (++block.in_sync < block.alive) return leave();
  block.in_sync = 0;
  for (auto& warp : block.warps)
    for (Thread& t : warp->lanes)
      if (&t != device.current) wake(&t);
}

uint8_t (*meet(const void* input, size_t bytes, Finish finish, std::source_location place))
    [kSlotBytes] {
      Warp& warp = *device.current->warp;
      const bool first = warp.arrived == 0;
      if (!first && (place.line() != warp.place.line() || place.column() != warp.place.column()))
        fail("lanes of warp %u meet in different places: %s:%u and %s:%u",
             device.current->index.x / 32, warp.place.file_name(), warp.place.line(),
             place.file_name(), place.line());
      if (first) warp.place = place;
      auto* slots = warp.slots[warp.meetings & 1];
      if (bytes > 0) std::memcpy(slots[lane()], input, bytes);
      warp.arrived |= 1u << lane();
      if (warp.arrived != warp.alive) {
        leave();
        return slots;
      }
      if (finish != nullptr) finish(slots, warp.alive);
      finish_meeting(warp);
      for (Thread& t : warp.lanes)
        if (&t != device.current && (warp.alive >> lane_of(t) & 1)) wake(&t);
      return slots;
    }

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

// ------------------------------------------------------------------ launch
void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  device.error = text;
  if (device.current != nullptr) leave();
  throw std::string(text);
}

int run_grid(Entry entry, const void* context, Dim grid, Dim block, size_t shared_bytes,
             uint32_t cluster) {
  const uint64_t seed = device.seed;
  device = Device{};
  device.seed = seed;
  device.state = seed * 0x9e3779b97f4a7c15ull | 1;
  device.entry = entry, device.context = context;
  device.cluster = cluster;
  device.in_cluster_sync.assign(grid.x / cluster, 0),
      device.cluster_syncs.assign(grid.x / cluster, 0);
  uint8_t* next = stack_memory(kStackBytes * grid.x * block.x);
  for (uint32_t x = 0; x < grid.x; x++) make_block(x, block, shared_bytes, next);
  try {
    schedule();
  } catch (const std::string&) {  // the message is in device.error
  }
  for (auto& b : device.blocks) std::free(b->shared);
  return device.error.empty() ? 0 : 1;
}

}  // namespace host_cuda

extern "C" void host_cuda_seed(uint64_t seed) { host_cuda::device.seed = seed; }
extern "C" const char* host_cuda_error() { return host_cuda::device.error.c_str(); }
extern "C" uint64_t host_cuda_switches() { return host_cuda::device.switches; }
