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
#pragma unroll 1
  for (int r = 0; r < p.n_rows; r++) {
    const bool mine = lane * 4 < p.n_experts;
    const uint32_t at = (r * p.n_experts + lane * 4) * 8, from[2] = {mine ? at : kNowhere, mine ? at + 16 : kNowhere};
    uint4 raw[2];
    gather<2>(p, ordinal, tag, p.router, raw, from);
    float v[4] = {__uint_as_float(raw[0].x), __uint_as_float(raw[0].z), __uint_as_float(raw[1].x),
                  __uint_as_float(raw[1].z)};
    if (!mine) v[0] = v[1] = v[2] = v[3] = -INFINITY;
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
    if (lane < p.top_k) route.weight[r * p.top_k + lane] = p.norm_topk ? my_weight / total : my_weight;
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
      route.pair[pairs_before++] = static_cast<uint8_t>(r * p.top_k + ((slots_of[j] >> (4 * r)) & 15));
    }
  }
  __syncwarp();
}

// Items [first, last) of union x tiles that a SLICED task covers.
__device__ __forceinline__ int2 slice(const TaskDescriptor& d, const Route& route, int tiles) {
  const int64_t items = static_cast<int64_t>(route.n_experts) * tiles;
  return {static_cast<int>(items * d.slice_lo >> 16), static_cast<int>(items * d.slice_hi >> 16)};
}

}  // namespace pointcode::mk
