// Merging of attention splits: warps 0 and 3 of every SM, 16 output dims at a time.
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

__device__ __forceinline__ size_t part_stride(int head_dim) {
  return static_cast<size_t>(head_dim) * 8 + 32;
}
__device__ __forceinline__ uint8_t* part_of(const Params& p, int row, int group, int split) {
  const size_t block = (static_cast<size_t>(row) * p.n_kv_heads + group) * p.n_splits + split;
  return p.part + block * kMaxGroup * part_stride(p.head_dim);
}

// Sum of a value over the lanes; no unrolling: this code runs once a layer and must stay small.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll 1
  for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
  return x;
}

// What merging needs to know of one (row, head): weights of the splits and of the current token, and 1 / their sum.
struct MergeWeights {
  float split, last, now, inverse;  // split: of split `lane`; last: of split 32
};
__device__ __forceinline__ MergeWeights merge_weights(const Params& p, int ordinal, uint32_t tag,
                                                      int item, int kv, const uint8_t* first,
                                                      uint32_t step) {
  const int lane = threadIdx.x & 31, hd = p.head_dim;
  const bool has4 = lane * 4 < hd;  // four dims of q and k per lane
  const uint32_t k_at = (kv + lane * 4) * 8,
                 k_from[2] = {has4 ? k_at : kNowhere, has4 ? k_at + 16 : kNowhere};
  const uint32_t q_from[1] = {has4 ? (item * hd + lane * 4) * 4 : kNowhere};
  const auto f = [](uint32_t u) { return __uint_as_float(u); };
  uint4 k[2], q[1], ml[2];
  gather<2>(p, ordinal, tag, p.k_new, k, k_from);
  gather<1>(p, ordinal, tag, p.q, q, q_from);
  const float2 qa = unpack_bf16(q[0].x), qb = unpack_bf16(q[0].z);
  const float now =
      warp_sum(f(k[0].x) * qa.x + f(k[0].z) * qa.y + f(k[1].x) * qb.x + f(k[1].z) * qb.y);
  const bool has_split[2] = {lane < p.n_splits, 32 < p.n_splits};
  const uint32_t ml_from[2] = {has_split[0] ? lane * step + hd * 8 : kNowhere,
                               has_split[1] ? 32 * step + hd * 8 : kNowhere};
  gather<2>(p, ordinal, tag, first, ml, ml_from);
  const float m0 = has_split[0] ? f(ml[0].x) : -INFINITY,
              m1 = has_split[1] ? f(ml[1].x) : -INFINITY;
  float top = fmaxf(m0, m1);
#pragma unroll 1
  for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
  top = fmaxf(top, now);
  const float e0 = exp2_fast(m0 - top), e1 = exp2_fast(m1 - top), e_now = exp2_fast(now - top);
  const float sum = warp_sum(has_split[0] ? e0 * f(ml[0].z) : 0.f) + e_now +
                    (has_split[1] ? e1 * f(ml[1].z) : 0.f);
  return {e0, e1, e_now, __fdividef(1.f, sum)};
}

// A run of 16-dim tiles of the attention output: lane l holds dims 2 (l & 7), + 1 of splits (l >> 3) + 4 i. Adds the current
// token, whose K and V are not yet in a page.
__device__ __forceinline__ void combine_tiles(const Params& p, int ordinal, int layer, int begin,
                                              int end) {
  constexpr int kTurns = (kMaxSplits + 3) / 4;
  const int lane = threadIdx.x & 31, hd = p.head_dim, heads = p.n_heads / p.n_kv_heads;
  const uint32_t tag = tag_of(p, layer), step = static_cast<uint32_t>(kMaxGroup * part_stride(hd));
  const auto f = [](uint32_t u) { return __uint_as_float(u); };
  int merged = -1;
  MergeWeights weights{};
#pragma unroll 1
  for (int tile = begin; tile < end; tile++) {
    const int item = tile * 16 / hd, row = item / p.n_heads, head = item % p.n_heads,
              group = head / heads;
    const int dim = tile * 16 % hd + (lane & 7) * 2, kv = (row * p.n_kv_heads + group) * hd;
    const uint8_t* first = part_of(p, row, group, 0) + (head % heads) * part_stride(hd);
    if (merged != item)
      weights = merge_weights(p, ordinal, tag, item, kv, first, step), merged = item;
    uint4 v[1], o[kTurns];
    uint32_t o_from[kTurns], v_from[1] = {static_cast<uint32_t>(kv + dim) * 8};
#pragma unroll
    for (int i = 0; i < kTurns; i++) {
      const int split = (lane >> 3) + 4 * i;
      o_from[i] = split < p.n_splits ? split * step + dim * 8 : kNowhere;
    }
    v[0] = load_volatile(p.v_new + v_from[0]);  // on its way with the others
    gather<kTurns>(p, ordinal, tag, first, o, o_from);
    if (!tagged(v[0], tag)) gather<1>(p, ordinal, tag, p.v_new, v, v_from);
    float x = 0.f, y = 0.f;
#pragma unroll
    for (int i = 0; i < kTurns; i++) {
      const int split = (lane >> 3) + 4 * i;
      float w = __shfl_sync(~0u, weights.split, split & 31);
      if (split >= 32) w = split == 32 ? weights.last : 0.f;
      x += w * f(o[i].x), y += w * f(o[i].z);
    }
#pragma unroll 1
    for (int i = 8; i < 32; i <<= 1)
      x += __shfl_xor_sync(~0u, x, i), y += __shfl_xor_sync(~0u, y, i);
    x = (x + weights.now * f(v[0].x)) * weights.inverse,
    y = (y + weights.now * f(v[0].z)) * weights.inverse;
    if (lane < 8) put(p.attn, operand_at((item * hd + dim) >> 1), pack_bf16(x, y), tag);
  }
}

// The two warps share a task's tiles.
__device__ __forceinline__ void combine(const Params& p, const TaskDescriptor& d, int half) {
  const int middle = d.tile_begin + (d.tile_count + 1) / 2, end = d.tile_begin + d.tile_count;
  combine_tiles(p, d.ordinal, d.layer, half ? middle : d.tile_begin, half ? end : middle);
  stamp(p, half ? 12 : 11, d.layer);
}

}  // namespace pointcode::mk
