// The state of the emulated device, and what both its scheduler (host_cuda.cc) and its memory (memory.cc) do with it.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fiber.h"
#include "host_cuda.h"

namespace host_cuda {

constexpr int kPoison = 0xff;  // NaN as float and as bf16

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
  int registers = 0;
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
  int spare_registers = 0;
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
inline Device device __attribute__((visibility("hidden")));

inline uint32_t dice(uint32_t sides) {  // xorshift64*
  uint64_t& s = device.state;
  s ^= s >> 12, s ^= s << 25, s ^= s >> 27;
  return static_cast<uint32_t>((s * 0x2545f4914f6cdd1dull) >> 33) % sides;
}

inline int lane_of(const Thread& t) { return static_cast<int>(&t - t.warp->lanes); }

// Lanes that wait for each other, and for nothing else.
inline void wake_lanes(Warp& warp, uint32_t lanes) {
  warp.ready |= lanes;
  if (!warp.listed && lanes != 0) warp.listed = true, device.ready.push_back(&warp);
}

inline void wake(Thread* t) {
  t->waits_for = nullptr, t->spins = false;
  wake_lanes(*t->warp, 1u << lane_of(*t));
}

inline void leave() { switch_context(&device.current->fiber.context, device.main); }

// ------------------------------------------------------------------ barriers
inline Barrier load(const uint64_t* bar) {
  Barrier b;
  std::memcpy(&b, bar, sizeof b);
  if (b.expected == 0xffff) fail("an mbarrier is used before it is initialised");
  return b;
}
inline void store(uint64_t* bar, Barrier b, Block* block) {
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

}  // namespace host_cuda
