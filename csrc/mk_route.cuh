// Which experts serve which rows: every SM derives it from the router's logits (one warp).
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

// Order-preserving map of a float to an unsigned integer.
__device__ __forceinline__ uint32_t ordered(float f) {
  const uint32_t u = __float_as_uint(f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Reads the tagged logits of all rows, writes the layer's route. Lane l holds experts 4 l .. 4 l + 3. Ties go to the lower id.
template <int NB>
__device__ __forceinline__ void make_route(const Params& p, int ordinal, int layer) {
  Route& route = smem<NB>().f.route[layer & 1];
  const int lane = threadIdx.x & 31;
  const uint32_t tag = tag_of(p, layer);
  uint32_t rows_of[4] = {};   // bit r
  uint32_t slots_of[4] = {};  // 4 bits per row
  const bool mine = lane * 4 < p.n_experts;
  float (*logits)[kMaxExperts] = smem<NB>().f.logits;  // each lane reads back what it wrote
  {
    uint4 raw[2 * NB];  // all rows' loads at once
    uint32_t from[2 * NB];
#pragma unroll
    for (int i = 0; i < 2 * NB; i++)
      from[i] =
          mine && i / 2 < p.n_rows ? (i / 2 * p.n_experts + lane * 4) * 8 + i % 2 * 16 : kNowhere;
    gather<2 * NB>(p, ordinal, tag, p.router, raw, from);
#pragma unroll
    for (int i = 0; i < 2 * NB; i++)
      *reinterpret_cast<uint2*>(&logits[i / 2][lane * 4 + i % 2 * 2]) = {raw[i].x, raw[i].z};
  }
#pragma unroll 1
  for (int r = 0; r < p.n_rows; r++) {
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = mine ? logits[r][lane * 4 + j] : -INFINITY;
    float total = 0.f, my_weight = 0.f;
#pragma unroll 1
    for (int k = 0; k < p.top_k; k++) {
      uint32_t best = 0;
      int which = 0;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const uint32_t o = ordered(v[j]);
        if (o > best) best = o, which = j;
      }
      const uint32_t top = __reduce_max_sync(~0u, best);
      const int id = __reduce_min_sync(~0u, best == top ? lane * 4 + which : kMaxExperts);
      float weight = 0.f;
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (id == lane * 4 + j) {
          weight = __fdividef(1.f, 1.f + __expf(-v[j]));
          v[j] = -INFINITY;
          rows_of[j] |= 1u << r;
          slots_of[j] |= static_cast<uint32_t>(k) << (4 * r);
        }
      weight = __shfl_sync(~0u, weight, (id >> 2) & 31);
      total += weight;
      if (lane == k) my_weight = weight;
    }
    if (lane < p.top_k)
      route.weight[r * p.top_k + lane] = p.norm_topk ? my_weight / total : my_weight;
  }
  int n = 0, pairs = 0;  // this lane's experts and (row, slot) pairs
#pragma unroll
  for (int j = 0; j < 4; j++) n += rows_of[j] != 0, pairs += __popc(rows_of[j]);
  int n_before = n, pairs_before = pairs;
#pragma unroll 1
  for (int k = 1; k < 32; k <<= 1) {
    const int a = __shfl_up_sync(~0u, n_before, k), b = __shfl_up_sync(~0u, pairs_before, k);
    if (lane >= k) n_before += a, pairs_before += b;
  }
  if (lane == 31) route.n_experts = n_before;
  n_before -= n, pairs_before -= pairs;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (rows_of[j] == 0) continue;
    route.entry[n_before++] = {static_cast<int16_t>(lane * 4 + j), static_cast<uint8_t>(rows_of[j]),
                               static_cast<uint8_t>(pairs_before)};
    for (uint32_t m = rows_of[j]; m; m &= m - 1) {
      const int r = __ffs(m) - 1;
      route.pair[pairs_before++] =
          static_cast<uint8_t>(r * p.top_k + ((slots_of[j] >> (4 * r)) & 15));
    }
  }
  __syncwarp();
}

__device__ __forceinline__ Slice slice(const TaskDescriptor& d, const Route& route, int tiles) {
  const int items = route.n_experts * tiles;  // < 2^15
  return {items * d.slice_lo >> 16, items * d.slice_hi >> 16, items * d.claim_begin >> 16, items};
}

}  // namespace pointcode::mk
