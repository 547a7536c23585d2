// What every consumer warp needs: its place in the ring, the hand-over to the storer, tensor-core
// products of ring stages. Warp w takes k-tiles w * tiles_per_warp .. of every stage, so each warp needs
// only its own 1/8 of an activation and a row's sums are grouped the same way whatever else is in the batch.
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
  uint32_t units = 0, syncs = 0;
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
    mbar_wait(p, &smem<NB>().ring_full[at_pos.slot], at_pos.phase, ordinal, WaitKind::kRingFull);
    return reinterpret_cast<const uint4*>(smem<NB>().ring[at_pos.slot]) + lane;
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
  // Hands this warp's partial 16 x 8 tile to the storer.
  __device__ __forceinline__ void give(const float (&c)[2][4], int item) {
    constexpr int kSlots = Fixed<NB>::kRedSlots;
    const int b = units % kSlots;
    if (units >= kSlots)
      mbar_wait(p, &f().red_empty[b], ((units / kSlots) - 1) & 1, ordinal, WaitKind::kReduceEmpty);
    float (*out)[NB] = f().red[b][w];
    if constexpr (NB == 1) {
      if (t == 0) out[g][0] = c[0][0] + c[1][0], out[g + 8][0] = c[0][2] + c[1][2];
    } else if (2 * t < NB) {
      *reinterpret_cast<float2*>(&out[g][2 * t]) = {c[0][0] + c[1][0], c[0][1] + c[1][1]};
      *reinterpret_cast<float2*>(&out[g + 8][2 * t]) = {c[0][2] + c[1][2], c[0][3] + c[1][3]};
    }
    if (w == 0 && lane == 0) f().red_item[b] = item;
    __syncwarp();
    if (lane == 0) mbar_arrive(&f().red_full[b]);
    units++;
  }

  // kStagesAtOnce stages against this warp's k-tiles of the activation; `x` is this lane's fragment in the first of them,
  // `mask` 0 for a column that must not count. Four k-tiles a stage without a branch between them; those past k_tiles count
  // nothing. All loads are issued before the first product: the latency of a stage is what limits a consumer.
  template <int kStagesAtOnce>
  __device__ __forceinline__ void mma_stages(const uint8_t* x, int stride, uint32_t mask,
                                             int k_tiles, float (&c)[2][4]) {
    uint4 av[4 * kStagesAtOnce];
    uint2 bv[4 * kStagesAtOnce];
#pragma unroll
    for (int h = 0; h < kStagesAtOnce; h++) {
      const uint4* a = stage(pos.ahead(h)) + w * k_tiles * 32;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int j = min(i, k_tiles - 1);
        av[h * 4 + i] = a[j * 32];
        bv[h * 4 + i] = *reinterpret_cast<const uint2*>(x + (h * k_tiles + j) * stride);
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * kStagesAtOnce; i++) {
      const uint32_t m = (i & 3) < k_tiles ? mask : 0u;
      mma_bf16(c[i & 1], av[i], bv[i].x & m, bv[i].y & m);
    }
    __syncwarp();
#pragma unroll
    for (int h = 0; h < kStagesAtOnce; h++) {
      if (lane == 0) mbar_arrive(&smem<NB>().ring_empty[pos.slot]);
      pos.next();
    }
  }
  // `n` stages that lie one after the other in `act`.
  __device__ __forceinline__ void mma_run(const uint8_t* x, int stride, uint32_t mask, int k_tiles,
                                          int n, float (&c)[2][4]) {
#pragma unroll 1
    for (; n >= 2; n -= 2, x += 2 * k_tiles * stride) mma_stages<2>(x, stride, mask, k_tiles, c);
    if (n) mma_stages<1>(x, stride, mask, k_tiles, c);
  }

  // Where payload pair `j` (pairs of k-tile j / 8) of block row `row` lies in `act`.
  __device__ __forceinline__ uint8_t* act_word(int j, int n, int row) const {
    const int pair = j & 7;
    return f().act[w] + ((j >> 3) * n + row) * kRowBytes + (pair & 3) * 8 + (pair >> 2) * 4;
  }
};

}  // namespace pointcode::mk
