// The scheduler of the emulated device: fibers, warps, meetings of lanes, when a copy lands.
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device.h"

namespace host_cuda {
namespace {

constexpr size_t kStackBytes = (20 << 10) + 192;  // not a power of two: they would share cache sets
constexpr uint64_t kMaxSwitches = 2'000'000'000;  // a launch that needs more does not end
constexpr uint32_t kRegisters = 65536,
                   kMostRegisters = 248;  // of a block alone on its SM, of a thread
constexpr int kLooksForRegisters = 100'000;
constexpr int kBurst = 64;  // lanes of one warp that run one after the other
// One in so many: a lane gives way inside a load or store; a spinning warp looks again; a copy lands.
constexpr uint32_t kYieldOdds = 64, kLookOdds = 24, kLandOdds = 3;

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
    wake_lanes(warp, lanes);
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

// A lane that is ready, at random. It is run after the one before it: what its switch reads comes meanwhile.
int next_lane(const Warp& warp) {
  const int first = static_cast<int>(dice(kWarpLanes));
  const int i = (first + std::countr_zero(std::rotr(warp.ready, first))) % kWarpLanes;
  warp.lanes[i].fiber.prefetch();
  return i;
}

void run_warp(Warp& warp) {
  if (warp.ready == 0) return;  // they ran in the turn that listed the warp
  int next = next_lane(warp);
  for (int n = 1 + static_cast<int>(dice(kBurst)); n > 0; n--) {
    const int i = next;
    warp.ready &= ~(1u << i);
    const bool chosen = warp.ready != 0;
    if (chosen) next = next_lane(warp);
    run_lane(warp.lanes[i]);
    if (!device.error.empty() || warp.ready == 0) return;
    if (!chosen) next = next_lane(warp);
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
      t.registers = static_cast<int>(std::min(kRegisters / size.x / 8 * 8, kMostRegisters));
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

void set_registers(int n) {
  Thread& t = *device.current;
  int& spare = t.warp->block->spare_registers;
  for (int looks = 0; spare < n - t.registers; looks++) {
    if (looks == kLooksForRegisters)
      fail("warp %u of block %u waits for registers that nobody gives back", t.index.x / kWarpLanes,
           t.block_index.x);
    pause_in_spin();
  }
  spare += t.registers - n;
  t.registers = n;
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
      wake_lanes(warp, warp.alive & ~(1u << lane()));
      return slots;
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
