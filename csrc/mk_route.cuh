// Which experts serve which rows: every SM derives it from the router's logits (one warp).
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

// Order-preserving map of a float to an unsigned integer.
__device__ __forceinline__ uint32_t ordered(float f) {
  const uint32_t u = __float_as_uint(f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float unordered(uint32_t u) {
  return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
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

// One row's experts and weights from the router's tagged logits, by a whole warp: slots go by falling logit, ties to the
// lower id. Lane l holds experts 4 l .. 4 l + 3. Each consumer warp takes a row while it would wait for q: one warp alone
// would need 2 us a row, and the gate/up weights wait for the route.
template <int NB>
__device__ __forceinline__ void choose(const Params& p, int ordinal, int layer, int row) {
  Fixed<NB>& f = smem<NB>().f;
  const int lane = threadIdx.x & 31;
  const bool mine = lane * 4 < p.n_experts;
  const uint32_t at = (row * p.n_experts + lane * 4) * 8;
  const uint32_t from[2] = {mine ? at : kNowhere, mine ? at + 16 : kNowhere};
  uint4 raw[2];
  gather<2>(p, ordinal, tag_of(p, layer), p.router, raw, from);
  uint32_t left[4] = {};  // 0: taken, or no expert
  if (mine)
    left[0] = ordered(__uint_as_float(raw[0].x)), left[1] = ordered(__uint_as_float(raw[0].z)),
    left[2] = ordered(__uint_as_float(raw[1].x)), left[3] = ordered(__uint_as_float(raw[1].z));
  uint32_t slots = 0, my_top = 0;
#pragma unroll 1
  for (int k = 0; k < p.top_k; k++) {
    const uint32_t best = max(max(left[0], left[1]), max(left[2], left[3])),
                   top = __reduce_max_sync(~0u, best);
    if (lane == k) my_top = top;
    if (lane != __ffs(__ballot_sync(~0u, best == top)) - 1) continue;
    const int which = left[0] == top ? 0 : left[1] == top ? 1 : left[2] == top ? 2 : 3;
    slots |= (k + 1u) << (8 * which);
#pragma unroll
    for (int j = 0; j < 4; j++) left[j] = j == which ? 0u : left[j];
  }
  __syncwarp();
  f.chosen[row][lane] = slots;
  const float weight = lane < p.top_k ? sigmoid(unordered(my_top)) : 0.f;
  float total = weight;
#pragma unroll
  for (int i = 4; i; i >>= 1) total += __shfl_xor_sync(~0u, total, i);
  if (lane < p.top_k)
    f.route[layer & 1].weight[row * p.top_k + lane] = p.norm_topk ? weight / total : weight;
}

// Makes the layer's route of what the consumer warps chose; by a whole warp.
template <int NB>
__device__ __forceinline__ void make_route(const Params& p, int ordinal, int layer, uint32_t turn) {
  Fixed<NB>& f = smem<NB>().f;
  mbar_wait(p, &f.chosen_full, turn & 1, ordinal, WaitKind::kChosen);
  Chosen chosen;
#pragma unroll 1
  for (int row = 0; row < p.n_rows; row++) {
    const uint32_t slots = f.chosen[row][threadIdx.x & 31];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int slot = static_cast<int>(slots >> (8 * j) & 255);
      if (slot) chosen.add(j, row, slot - 1);
    }
  }
  list_union(f.route[layer & 1], chosen, p.top_k);
}

__device__ __forceinline__ Slice slice(const TaskDescriptor& d, const Route& route, int tiles) {
  const int items = route.n_experts * tiles;  // < 2^15
  return {items * d.slice_lo >> 16, items * d.slice_hi >> 16, items * d.claim_begin >> 16, items};
}

}  // namespace pointcode::mk
