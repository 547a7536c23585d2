// Which experts serve which rows: every SM derives it from the router's logits (one warp).
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

// Order-preserving map of a float to an unsigned integer.
__device__ __forceinline__ uint32_t ordered(float f) {
  const uint32_t u = __float_as_uint(f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }

// Which rows chose experts 4 l .. 4 l + 3 of lane l, and as which slot.
struct Chosen {
  uint32_t rows[4] = {};   // bit r
  uint32_t slots[4] = {};  // 4 bits per row
  __device__ __forceinline__ void add(int j, int row, int slot) {
    rows[j] |= 1u << row;
    slots[j] |= static_cast<uint32_t>(slot) << (4 * row);
  }
};

// The union of all rows' experts in ascending order, and its pairs; by a whole warp.
__device__ __forceinline__ void list_union(Route& route, const Chosen& chosen, int top_k) {
  const int lane = threadIdx.x & 31;
  int n = 0, pairs = 0;  // this lane's experts and (row, slot) pairs
#pragma unroll
  for (int j = 0; j < 4; j++) n += chosen.rows[j] != 0, pairs += __popc(chosen.rows[j]);
  int both = n << 16 | pairs;
#pragma unroll 1
  for (int k = 1; k < 32; k <<= 1) {
    const int below = __shfl_up_sync(~0u, both, k);
    if (lane >= k) both += below;
  }
  int n_before = both >> 16, pairs_before = both & 0xffff;
  if (lane == 31) route.n_experts = n_before;
  n_before -= n, pairs_before -= pairs;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (chosen.rows[j] == 0) continue;
    route.entry[n_before++] = {static_cast<int16_t>(lane * 4 + j),
                               static_cast<uint8_t>(chosen.rows[j]),
                               static_cast<uint8_t>(pairs_before)};
    for (uint32_t m = chosen.rows[j]; m; m &= m - 1) {
      const int r = __ffs(m) - 1;
      route.pair[pairs_before++] =
          static_cast<uint8_t>(r * top_k + ((chosen.slots[j] >> (4 * r)) & 15));
    }
  }
  __syncwarp();
}

// Reads the tagged logits of all rows, writes the layer's route. Lane l holds experts 4 l .. 4 l + 3; slots go by falling
// logit, ties to the lower id. Several rows at once: a choice is a chain of latencies, and the gate/up waits for it.
template <int NB>
__device__ __forceinline__ void make_route(const Params& p, int ordinal, int layer) {
  constexpr int kAtOnce = NB < 4 ? NB : 4;
  Route& route = smem<NB>().f.route[layer & 1];
  const int lane = threadIdx.x & 31, n_pairs = p.n_rows * p.top_k;
  const uint32_t tag = tag_of(p, layer);
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
  Chosen chosen;
#pragma unroll 1
  for (int r0 = 0; r0 < p.n_rows; r0 += kAtOnce) {
    uint32_t left[kAtOnce][4];  // 0: taken, or no expert
#pragma unroll
    for (int i = 0; i < kAtOnce; i++)
#pragma unroll
      for (int j = 0; j < 4; j++)
        left[i][j] = mine && r0 + i < p.n_rows ? ordered(logits[r0 + i][lane * 4 + j]) : 0u;
#pragma unroll 1
    for (int k = 0; k < p.top_k; k++) {
      uint32_t best[kAtOnce], top[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        best[i] = max(max(left[i][0], left[i][1]), max(left[i][2], left[i][3]));
        top[i] = __reduce_max_sync(~0u, best[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        const int owner = __ffs(__ballot_sync(~0u, best[i] == top[i])) - 1;
        if (lane != owner || r0 + i >= p.n_rows) continue;
        bool found = false;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if (found || left[i][j] != top[i]) continue;
          found = true, left[i][j] = 0;
          chosen.add(j, r0 + i, k);
          route.weight[(r0 + i) * p.top_k + k] = logits[r0 + i][lane * 4 + j];
        }
      }
    }
  }
  __syncwarp();
  float weight[(NB * kMaxTopK + 31) / 32];
#pragma unroll
  for (int h = 0; h < (NB * kMaxTopK + 31) / 32; h++) {
    const int pair = lane + 32 * h, first = pair / p.top_k * p.top_k;
    if (pair >= n_pairs) continue;
    float total = 0.f;
#pragma unroll 1
    for (int k = 0; k < p.top_k; k++) total += sigmoid(route.weight[first + k]);
    weight[h] = sigmoid(route.weight[pair]);
    if (p.norm_topk) weight[h] = weight[h] / total;
  }
  __syncwarp();
#pragma unroll
  for (int h = 0; h < (NB * kMaxTopK + 31) / 32; h++)
    if (lane + 32 * h < n_pairs) route.weight[lane + 32 * h] = weight[h];
  list_union(route, chosen, p.top_k);
}

__device__ __forceinline__ Slice slice(const TaskDescriptor& d, const Route& route, int tiles) {
  const int items = route.n_experts * tiles;  // < 2^15
  return {items * d.slice_lo >> 16, items * d.slice_hi >> 16, items * d.claim_begin >> 16, items};
}

}  // namespace pointcode::mk
