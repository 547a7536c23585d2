// What every consumer warp needs: its place in the ring, the hand-over to the storer, tensor-core products of ring stages.
// A stage of weights is one warp's work: its waits, releases and sums are paid once for 32 k-tiles. A tile's stages go to
// warps in turn; their sums stay apart until the storer adds them in the order of the stages, so that a row's sums are
// grouped the same way whatever else is in the batch and whoever's turn it was.
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

template <int NB>
struct ConsumerCore {
  static constexpr int kStages = Smem<NB>::kStages;
  static constexpr int kRowBytes = 32;  // one row's 16 values of a k-tile, as four (b0, b1) pairs
  const Params& p;
  const int w, lane, g, t;
  RingPos<kStages> pos{};
  uint32_t units = 0, syncs = 0, turn = 0, items = 0;
  uint32_t routed_layers = 0;  // whose experts have been chosen
  int ordinal = -1;
  int normed_layer = -1;  // layer whose normed input lies in `act`

  __device__ explicit ConsumerCore(const Params& params)
      : p(params),
        w((threadIdx.x >> 5) - kFirstConsumer),
        lane(threadIdx.x & 31),
        g(lane >> 2),
        t(lane & 3) {}

  __device__ __forceinline__ static Fixed<NB>& f() { return smem<NB>().f; }

  // ---------------------------------------------------------------- ring, reduction, warp sync
  __device__ __forceinline__ const uint4* stage(const RingPos<kStages>& at_pos) {
    Smem<NB>& s = smem<NB>();
    const volatile uint32_t* number = &s.number[at_pos.slot];
#pragma unroll 1
    for (uint32_t n = 1; *number != at_pos.number; n++)
      spin(p, n, ordinal, WaitKind::kRingFull, *number, at_pos.number);
    mbar_wait(p, &s.ring_full[at_pos.slot], at_pos.phase, ordinal, WaitKind::kRingFull);
    return reinterpret_cast<const uint4*>(s.ring[at_pos.slot]) + lane;
  }
  __device__ __forceinline__ void release(const RingPos<kStages>& at_pos) {
    __syncwarp();
    if (lane == 0) mbar_arrive(&smem<NB>().ring_empty[at_pos.slot]);
  }
  __device__ __forceinline__ void sync() {
    __syncwarp();
    if (lane == 0) mbar_arrive(&f().warp_sync);
    mbar_wait(p, &f().warp_sync, syncs++ & 1, ordinal, WaitKind::kWarpSync);
  }
  __device__ __forceinline__ int next_item() {
    const uint32_t slot = items % kItemSlots;
    mbar_wait(p, &f().item_full[slot], items / kItemSlots & 1, ordinal, WaitKind::kItem);
    const int item = f().item[slot];
    __syncwarp();
    if (lane == 0) mbar_arrive(&f().item_empty[slot]);
    items++;
    return item;
  }

  // Until all that was loaded carries the tag; piece i is loaded again from at(i).
  template <int N, typename At>
  __device__ __forceinline__ void settle_pieces(uint32_t tag, uint4 (&x)[N], const At& at) const {
#pragma unroll 1
    for (uint32_t n = 1;; n++) {
      bool ok = true;
      uint32_t seen = tag;
#pragma unroll
      for (int i = 0; i < N; i++) {
        if (tagged(x[i], tag)) continue;
        ok = false, seen = x[i].y, x[i] = load_volatile(at(i));
      }
      if (ok) break;
      spin(p, n, ordinal, WaitKind::kData, seen, tag);
    }
  }

  // Hands a partial 16 x 8 tile to the storer, as part `part`; `share`: this part's of the eight arrivals. sum: output rows
  // g (0, 1) and g + 8 (2, 3) of batch rows 2 t, 2 t + 1.
  __device__ __forceinline__ void give(const float (&sum)[4], int part, int share, int item) {
    const int b = units % Fixed<NB>::kRedSlots;
    const volatile uint32_t* free = &f().red_free[b];
#pragma unroll 1
    for (uint32_t n = 1; *free != units; n++)
      spin(p, n, ordinal, WaitKind::kReduceEmpty, *free, units);
    __threadfence_block();
    float (*out)[NB] = f().red[b][part];
    if constexpr (NB == 1) {
      if (t == 0) out[g][0] = sum[0], out[g + 8][0] = sum[2];
    } else if (2 * t < NB) {
      *reinterpret_cast<float2*>(&out[g][2 * t]) = {sum[0], sum[1]};
      *reinterpret_cast<float2*>(&out[g + 8][2 * t]) = {sum[2], sum[3]};
    }
    if (part == 0 && lane == 0) f().red_item[b] = item;
    __syncwarp();
    if (lane == 0) mbar_arrive(&f().red_full[b], share);
  }

  // Done with a stage of weights that no other warp reads.
  __device__ __forceinline__ void release_whole(const RingPos<kStages>& at) {
    __syncwarp();
    if (lane == 0) mbar_arrive(&smem<NB>().ring_empty[at.slot], kConsumers);
  }
  // The stage at `at`, 8 x octets k-tiles, against the activation: `x` is this lane's fragment of its first k-tile, `stride`
  // the bytes from one k-tile to the next. Eight k-tiles without a branch between them, all loads before the first product.
  // Releases the stage.
  __device__ __forceinline__ void mma_stage(const RingPos<kStages>& at, const uint8_t* x,
                                            int stride, int octets, float (&c)[4][4]) {
    const uint4* a = stage(at);
#pragma unroll 1
    for (; octets; octets--, a += 8 * 32, x += 8 * stride) {
      uint4 av[8];
      uint2 bv[8];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        av[i] = a[i * 32];
        bv[i] = *reinterpret_cast<const uint2*>(x + i * stride);
      }
#pragma unroll
      for (int i = 0; i < 8; i++) mma_bf16(c[i & 3], av[i], bv[i].x, bv[i].y);
    }
    release_whole(at);
  }
  // One tile of a matrix whose input lies in `act`; the warps whose turn it is hand their parts over.
  __device__ __forceinline__ void tile(const PackPlan& plan, const uint8_t* x, int stride,
                                       int item) {
    const int parts = plan.parts(), mine = (w - static_cast<int>(turn)) & (kConsumers - 1);
    if (mine < parts) {
      float c[4][4] = {};
#pragma unroll 1
      for (int j = mine; j < plan.stages; j += kConsumers)
        mma_stage(pos.ahead(j), x + j * plan.octets * 8 * stride, stride, plan.octets, c);
      float sum[4];
#pragma unroll
      for (int i = 0; i < 4; i++) sum[i] = (c[0][i] + c[1][i]) + (c[2][i] + c[3][i]);
      const int share = kConsumers * (mine + 1) / parts - kConsumers * mine / parts;
      give(sum, mine, share, item);
    }
    units++;
    turn += plan.stages;
    pos = pos.ahead(plan.stages);
  }
};

}  // namespace pointcode::mk
