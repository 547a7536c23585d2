// Merging of attention splits: warps 0 and 3 of every SM, 16 output dims at a time.
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

__device__ __forceinline__ size_t part_stride(int head_dim) { return static_cast<size_t>(head_dim) * 8 + 32; }
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

// One 16-dim tile of the attention output of one head: lane l holds dims 2 (l & 7), + 1 of splits (l >> 3) + 4 i. Adds the
// current token, whose K and V are not yet in a page.
__device__ __forceinline__ void combine_tile(const Params& p, int ordinal, int layer, int tile) {
  constexpr int kTurns = (kMaxSplits + 3) / 4;
  const int lane = threadIdx.x & 31, hd = p.head_dim, heads = p.n_heads / p.n_kv_heads;
  const int item = tile * 16 / hd, row = item / p.n_heads, head = item % p.n_heads, group = head / heads;
  const int dim = tile * 16 % hd + (lane & 7) * 2, kv = (row * p.n_kv_heads + group) * hd;
  const uint32_t tag = tag_of(p, layer), step = static_cast<uint32_t>(kMaxGroup * part_stride(hd));
  const uint8_t* first = part_of(p, row, group, 0) + (head % heads) * part_stride(hd);
  const auto f = [](uint32_t u) { return __uint_as_float(u); };

  // Four dims of q and k per lane, two dims of v: the current token's score and value.
  const bool has4 = lane * 4 < hd;
  const uint32_t k_at = (kv + lane * 4) * 8, v_from[1] = {static_cast<uint32_t>(kv + dim) * 8};
  const uint32_t k_from[2] = {has4 ? k_at : kNowhere, has4 ? k_at + 16 : kNowhere};
  const uint32_t q_from[1] = {has4 ? (row * p.n_heads * hd + head * hd + lane * 4) * 4 : kNowhere};
  uint4 k[2], v[1], q[1];
  gather<2>(p, ordinal, tag, p.k_new, k, k_from);
  gather<1>(p, ordinal, tag, p.v_new, v, v_from);
  gather<1>(p, ordinal, tag, p.q, q, q_from);
  const float2 qa = unpack_bf16(q[0].x), qb = unpack_bf16(q[0].z);
  const float now = warp_sum(f(k[0].x) * qa.x + f(k[0].z) * qa.y + f(k[1].x) * qb.x + f(k[1].z) * qb.y);

  // (m, l) of split `lane` and of split 32; every lane's o.
  const bool has_split[2] = {lane < p.n_splits, 32 < p.n_splits};
  const uint32_t ml_from[2] = {has_split[0] ? lane * step + hd * 8 : kNowhere, has_split[1] ? 32 * step + hd * 8 : kNowhere};
  uint4 ml[2], o[kTurns];
  gather<2>(p, ordinal, tag, first, ml, ml_from);
  uint32_t o_from[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; i++) {
    const int split = (lane >> 3) + 4 * i;
    o_from[i] = split < p.n_splits ? split * step + dim * 8 : kNowhere;
  }
  gather<kTurns>(p, ordinal, tag, first, o, o_from);
  const float m0 = has_split[0] ? f(ml[0].x) : -INFINITY, m1 = has_split[1] ? f(ml[1].x) : -INFINITY;
  float top = fmaxf(m0, m1);
#pragma unroll 1
  for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
  top = fmaxf(top, now);
  const float e0 = exp2_fast(m0 - top), e1 = exp2_fast(m1 - top), e_now = exp2_fast(now - top);
  const float sum = warp_sum(has_split[0] ? e0 * f(ml[0].z) : 0.f) + e_now + (has_split[1] ? e1 * f(ml[1].z) : 0.f);
  float x = 0.f, y = 0.f;
#pragma unroll
  for (int i = 0; i < kTurns; i++) {
    const int split = (lane >> 3) + 4 * i;
    float w = __shfl_sync(~0u, e0, split & 31);
    if (split >= 32) w = split == 32 ? e1 : 0.f;
    x += w * f(o[i].x), y += w * f(o[i].z);
  }
#pragma unroll 1
  for (int i = 8; i < 32; i <<= 1) x += __shfl_xor_sync(~0u, x, i), y += __shfl_xor_sync(~0u, y, i);
  x += e_now * f(v[0].x), y += e_now * f(v[0].z);
  const float inverse = __fdividef(1.f, sum);
  if (lane < 8) put(p.attn, (item * hd + dim) >> 1, pack_bf16(x * inverse, y * inverse), tag);
}

__device__ __forceinline__ void combine(const Params& p, const TaskDescriptor& d, int half) {
#pragma unroll 1
  for (int i = half; i < d.tile_count; i += 2) combine_tile(p, d.ordinal, d.layer, d.tile_begin + i);
  stamp(p, half ? 12 : 11, d.layer);
}

}  // namespace pointcode::mk
