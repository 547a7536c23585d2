// Shared memory, bounded waits and tagged hand-over: what every role of the megakernel uses.
//
// Sync sites (producer -> consumer, count, fence, reset):
//   desc.full[i]   controller's bulk copy -> all 12 warps        1 + 128 bytes   mbarrier phase
//   desc.empty[i]  all 12 warps -> controller                    12              mbarrier phase
//   ring.full[i]   producer's bulk copies -> the consumer warps  1 + bytes       mbarrier phase
//   ring.empty[i]  weights: the warp whose turn it was (with 8)  8               mbarrier phase
//                  pages: 8 consumer warps, once the last row that uses them is done (mk_chain.cuh)
//   item.full[i]   producer -> 8 consumer warps                  1               mbarrier phase
//   item.empty[i]  8 consumer warps -> producer                  8               mbarrier phase
//   red.full[i]    the consumer warps with a part -> storer      8               mbarrier phase
//   red.free[i]    storer -> the consumer warps with a part      number of the tile   fences of the block
//   chosen_full    8 consumer warps -> combiner                  8               mbarrier phase, one a MoE layer
//   route_full     combiner -> producer, consumer warps (and through item, ring, red everybody) 1   the same
//   started        all warps but the producer -> all             11              mbarrier phase, once
//   warp_sync      8 consumer warps among themselves             8               mbarrier phase
//   tagged data    any SM -> any SM                              per 8 bytes     the tag (step, layer) is never reused
//                                                                                within 2^24 steps
// A warp walks past stages whose turn is another's without looking at them, so it may come to a slot a lap early, where the
// phase of two laps ago would look like its own: it waits for the stage's number first (written before the copy is begun).
// It cannot come late: the producer does not pass a stage that its owner has not released.
#pragma once

#include "mk_params.h"
#include "mk_ptx.cuh"

namespace pointcode::mk {

constexpr int kMaxSmem = 232448;  // 227 KB, what one block may use on sm_90
constexpr int kDescSlots = 16;
constexpr int kItemSlots = 8;

constexpr int32_t kNoItem = -1;

enum Warp : int { kController = 0, kProducer = 1, kStorer = 2, kCombiner = 3, kFirstConsumer = 4 };

struct RouteEntry {
  int16_t expert;
  uint8_t rows;   // bit r: row r is routed here
  uint8_t begin;  // index of its first pair
};
struct Route {
  int32_t n_experts;
  RouteEntry entry[kMaxRows * kMaxTopK];
  uint8_t pair[kMaxRows * kMaxTopK];  // row * top_k + slot, grouped by expert in ascending order
  float weight[kMaxRows * kMaxTopK];  // by row * top_k + slot
};

template <int NB>
struct Fixed {  // everything in shared memory but the ring
  static constexpr int kRedSlots = NB <= 2 ? 4 : 2;
  alignas(16) uint8_t act
      [NB * kMaxHidden *
       2];  // the normed input: [k-tile][row][32 bytes: a row's 16 values as four (b0, b1) pairs]
  float red[kRedSlots][kConsumers][16][NB];
  int32_t red_item[kRedSlots];   // gate/up: the unit's item
  uint32_t red_free[kRedSlots];  // the unit that may be written here
  alignas(16) __nv_bfloat16 q[kMaxGroup][kMaxHeadDim + 8];
  __nv_bfloat16 prob[kMaxGroup][136];
  float score[kMaxGroup][132];
  float correction[kMaxGroup];
  float square_sum[2][NB][kConsumers];
  alignas(16) float2 rope[NB][kMaxHeadDim / 2];
  uint32_t chosen[NB][kMaxExperts / 4];  // a byte per expert: 1 + its slot in the row, or 0
  float owned[4][NB][16];                // this SM's residual tiles
  int32_t position[NB], page[2][NB];     // of each row's token; its page in either KV group
  Leader leader[NB][16];                 // by batch row and output row
  uint64_t noise_key[NB];
  Route route[2];
  uint8_t routes[256];                           // per layer: whether this SM needs the route
  int32_t item[kItemSlots];                      // claimed items, ahead of their stages
  alignas(128) TaskDescriptor desc[kDescSlots];  // bulk copies want 16-byte alignment
  uint64_t desc_full[kDescSlots], desc_empty[kDescSlots];
  uint64_t red_full[kRedSlots], warp_sync, route_full, chosen_full, started;
  uint64_t item_full[kItemSlots], item_empty[kItemSlots];
};

template <int NB>
struct Smem {
  static constexpr int kStages =
      (kMaxSmem - static_cast<int>(sizeof(Fixed<NB>)) - 1024) / (kStageBytes + 20);
  static_assert(kStages >= 8);
  alignas(1024) uint8_t ring[kStages][kStageBytes];
  Fixed<NB> f;
  uint64_t ring_full[kStages], ring_empty[kStages];
  uint32_t number[kStages];  // of the stage that is or was last brought here, from 1
};
static_assert(sizeof(Smem<1>) <= kMaxSmem && sizeof(Smem<8>) <= kMaxSmem);

// First and past-last item of a SLICED task, and where claiming begins.
struct Slice {
  int first, last, claim, items;
};

// The block's shared memory. Found through the symbol each time, so that the compiler sees shared-space addresses.
template <int NB>
__device__ __forceinline__ Smem<NB>& smem() {
  return *reinterpret_cast<Smem<NB>*>(dynamic_smem());
}

// ------------------------------------------------------------------------------------------------ bounded waits
// Called once per turn of every spin. The first waiter to reach the limit names itself in the mailbox and ends; the others
// reach theirs and follow, so the kernel ends and the host finds the mailbox. Nothing waits in a hardware barrier that a
// missing warp could hang. Inline on purpose: a call would push the caller's state to memory.
__device__ __forceinline__ void spin(const Params& p, uint32_t n, int ordinal, WaitKind kind,
                                     uint32_t seen, uint32_t wanted) {
  if (n < p.spin_limit) return spin_pause();
  if (atomicExch(p.abort_flag, 1u) == 0u) {
    const uint32_t who = blockIdx.x << 16 | (threadIdx.x >> 5) << 8 | static_cast<uint32_t>(kind);
    *reinterpret_cast<uint4*>(p.mailbox) = {who, static_cast<uint32_t>(ordinal), seen, wanted};
  }
  exit_thread();
}
__device__ __forceinline__ void mbar_wait(const Params& p, uint64_t* bar, uint32_t parity,
                                          int ordinal, WaitKind kind) {
#pragma unroll 1
  for (uint32_t n = 1; !mbar_try_wait(bar, parity); n++) spin(p, n, ordinal, kind, parity, 0);
}

// ------------------------------------------------------------------------------------------------ tagged hand-over
__device__ __forceinline__ uint32_t tag_of(const Params& p, int layer) {
  return p.step * 256u + static_cast<uint32_t>(layer);
}
__device__ __forceinline__ void put(uint8_t* base, int index, uint32_t payload, uint32_t tag) {
  store_relaxed(base + static_cast<size_t>(index) * 8,
                (static_cast<uint64_t>(tag) << 32) | payload);
}
__device__ __forceinline__ void put(uint8_t* base, int index, float payload, uint32_t tag) {
  put(base, index, __float_as_uint(payload), tag);
}
__device__ __forceinline__ bool tagged(uint4 v, uint32_t tag) { return v.y == tag && v.w == tag; }

// Where pair `pair` of a row lies among its pairs in a buffer that feeds a GEMM: the pairs t and t + 4 of a k-tile (eight
// pairs) follow each other, so that 16 bytes are what lane t needs of it, with their tags.
__device__ __forceinline__ int operand_at(int pair) {
  return (pair & ~7) | (pair & 3) << 1 | (pair >> 2 & 1);
}

// Loads N 16-byte pieces (two payloads each: .x and .z) at base + from[i], all in flight at once, until all carry the
// tag; those that do are not loaded again. A piece at kNowhere is zero.
constexpr uint32_t kNowhere = ~0u;
template <int N>
__device__ __forceinline__ void gather(const Params& p, int ordinal, uint32_t tag,
                                       const uint8_t* base, uint4 (&x)[N],
                                       const uint32_t (&from)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = from[i] == kNowhere ? uint4{0, tag, 0, tag} : uint4{};
#pragma unroll 1
  for (uint32_t n = 0;; n++) {
    bool ok = true;
    uint32_t seen = tag;
    base = opaque(base);  // keeps the sums below out of registers between turns
#pragma unroll
    for (int i = 0; i < N; i++)
      if (!tagged(x[i], tag)) ok = false, seen = x[i].y, x[i] = load_volatile(base + from[i]);
    if (ok) return;
    if (n) spin(p, n, ordinal, WaitKind::kData, seen, tag);
  }
}

// ------------------------------------------------------------------------------------------------ ring position
template <int kStages>
struct RingPos {
  uint32_t slot = 0, phase = 0, number = 1;
  __device__ __forceinline__ void next() {
    number++;
    if (++slot == kStages) slot = 0, phase ^= 1;
  }
  __device__ __forceinline__ RingPos ahead(uint32_t n) const {
    RingPos at{slot + n, phase, number + n};
#pragma unroll 1
    while (at.slot >= kStages) at.slot -= kStages, at.phase ^= 1;
    return at;
  }
  // n stages before this one; n <= kStages.
  __device__ __forceinline__ RingPos behind(uint32_t n) const {
    const bool laps = slot < n;
    return {slot - n + (laps ? kStages : 0), phase ^ laps, number - n};
  }
};

// Each warp walks all descriptors of its SM; the controller keeps the next ones in shared memory.
template <int NB>
struct DescriptorReader {
  uint32_t i = 0;
  __device__ __forceinline__ const TaskDescriptor& open(const Params& p) {
    const uint32_t slot = i % kDescSlots;
    Fixed<NB>& f = smem<NB>().f;
    mbar_wait(p, &f.desc_full[slot], (i / kDescSlots) & 1, static_cast<int>(i),
              WaitKind::kDescriptor);
    return f.desc[slot];
  }
  __device__ __forceinline__ void close() {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbar_arrive(&smem<NB>().f.desc_empty[i % kDescSlots]);
    i++;
  }
};

// Visible pages of row r in this split: [begin, end); keys in [first_key, position) are attended (the current token is
// added by the combiner).
struct PageRange {
  int begin, end, first_key, position;
};
template <int NB>
__device__ __forceinline__ PageRange page_range(const Params& p, int row, bool sliding, int split) {
  const int position = smem<NB>().f.position[row];
  const int first = sliding ? max(0, position - p.window + 1) : 0;
  const int first_page = first / kPageTokens, n = position / kPageTokens - first_page + 1;
  return {first_page + n * split / p.n_splits, first_page + n * (split + 1) / p.n_splits, first,
          position};
}

// Byte offsets of element (token, dim) inside one (page, KV head) block; both are mma A-fragment tiles of 16 x 16.
// K: rows are tokens, the reduction runs over dims. V: rows are dims, the reduction runs over tokens.
__device__ __forceinline__ int fragment_offset(int row, int k, int k_tiles) {
  const int tile = (row >> 4) * k_tiles + (k >> 4), rr = row & 15, kk = k & 15;
  return tile * 512 + ((rr & 7) * 4 + ((kk & 7) >> 1)) * 16 + ((rr >> 3) + 2 * (kk >> 3)) * 4 +
         (kk & 1) * 2;
}

// Row r's pages of one KV group: physical page of each logical one.
__device__ __forceinline__ const int32_t* page_table(const Params& p, bool sliding, int row) {
  return p.page_table + (static_cast<size_t>(sliding) * kMaxRows + p.table_row[row]) * p.max_pages;
}

#ifdef POINTCODE_MK_TRACE
__device__ __forceinline__ void stamp(const Params& p, int event, int layer) {
  if (p.trace && (threadIdx.x & 31) == 0)
    p.trace[(static_cast<size_t>(blockIdx.x) * 256 + layer) * 16 + event] = global_ns();
}
#else
__device__ __forceinline__ void stamp(const Params&, int, int) {}
#endif

}  // namespace pointcode::mk
