// Merging of attention splits: warps 0 and 3 of the SMs that hold ATTN_COMBINE tasks, 64 dims each.
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

__device__ __forceinline__ size_t part_stride(int head_dim) { return static_cast<size_t>(head_dim) * 8 + 32; }
__device__ __forceinline__ uint8_t* part_of(const Params& p, int row, int group, int split) {
  const size_t block = (static_cast<size_t>(row) * p.n_kv_heads + group) * p.n_splits + split;
  return p.part + block * kMaxGroup * part_stride(p.head_dim);
}

// One (row, head) item, dims [64 half, 64 half + 64). Adds the current token, whose K and V are not yet in a page.
__device__ __forceinline__ void combine_item(const Params& p, int ordinal, int layer, int item, int half) {
  const int lane = threadIdx.x & 31, hd = p.head_dim, heads = p.n_heads / p.n_kv_heads;
  const int row = item / p.n_heads, head = item % p.n_heads, group = head / heads;
  const uint32_t tag = tag_of(p, layer);
  const size_t stride = kMaxGroup * part_stride(hd);  // from one split to the next
  const uint8_t* first = part_of(p, row, group, 0) + (head % heads) * part_stride(hd);
  const auto f = [](uint32_t u) { return __uint_as_float(u); };

  // Four dims of q and k per lane, two dims of v; then (m, l) of split `lane` and of split 32; then o of every split.
  const int kv = (row * p.n_kv_heads + group) * hd, my_dim = half * 64 + lane * 2;
  const bool has4 = lane * 4 < hd, has2 = my_dim < hd;
  const uint32_t k_at = (kv + lane * 4) * 8;
  const uint32_t k_from[2] = {has4 ? k_at : kNowhere, has4 ? k_at + 16 : kNowhere}, v_from[1] = {has2 ? (kv + my_dim) * 8 : kNowhere};
  const uint32_t q_from[1] = {has4 ? (row * p.n_heads * hd + head * hd + lane * 4) * 4 : kNowhere};
  uint4 k[2], v[1], q[1];
  gather<2>(p, ordinal, tag, p.k_new, k, k_from);
  gather<1>(p, ordinal, tag, p.v_new, v, v_from);
  gather<1>(p, ordinal, tag, p.q, q, q_from);
  const float2 qa = unpack_bf16(q[0].x), qb = unpack_bf16(q[0].z);
  float now = has4 ? f(k[0].x) * qa.x + f(k[0].z) * qa.y + f(k[1].x) * qb.x + f(k[1].z) * qb.y : 0.f;
#pragma unroll 1
  for (int i = 16; i; i >>= 1) now += __shfl_xor_sync(~0u, now, i);

  const bool has_split[2] = {lane < p.n_splits, 32 < p.n_splits};
  const uint32_t step = static_cast<uint32_t>(stride);
  const uint32_t ml_from[2] = {has_split[0] ? lane * step + hd * 8 : kNowhere, has_split[1] ? 32 * step + hd * 8 : kNowhere};
  uint4 ml[2];
  gather<2>(p, ordinal, tag, first, ml, ml_from);
  uint4 o[kMaxSplits];
#pragma unroll 1
  for (uint32_t n = 1;; n++) {
    const uint8_t* from = first + (has2 ? my_dim : 0) * 8;  // past the last split: the last one again, with weight 0
    asm volatile("" : "+l"(from));                            // or all 33 addresses live in registers
    bool ok = true;
#pragma unroll
    for (int i = 0; i < kMaxSplits; i++) {
      o[i] = load_volatile(from);
      if (i + 1 < p.n_splits) from += stride;
    }
#pragma unroll
    for (int i = 0; i < kMaxSplits; i++) ok &= tagged(o[i], tag);
    if (ok) break;
    spin(p, n, ordinal, WaitKind::kData, o[0].y, tag);
  }
  const float m0 = has_split[0] ? f(ml[0].x) : -INFINITY, m1 = has_split[1] ? f(ml[1].x) : -INFINITY;
  float top = fmaxf(m0, m1);
#pragma unroll 1
  for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
  top = fmaxf(top, now);
  const float e0 = exp2f(m0 - top), e1 = exp2f(m1 - top), e_now = exp2f(now - top);
  float sum = has_split[0] ? e0 * f(ml[0].z) : 0.f;
#pragma unroll 1
  for (int i = 16; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
  sum += e_now + (has_split[1] ? e1 * f(ml[1].z) : 0.f);
  float x = has2 ? e_now * f(v[0].x) : 0.f, y = has2 ? e_now * f(v[0].z) : 0.f;
#pragma unroll
  for (int i = 0; i < kMaxSplits; i++) {
    const float w = i < 32 ? __shfl_sync(~0u, e0, i & 31) : e1;
    x += w * f(o[i].x), y += w * f(o[i].z);
  }
  const float inverse = __fdividef(1.f, sum);
  if (has2) put(p.attn, (row * p.n_heads * hd + head * hd + my_dim) >> 1, pack_bf16(x * inverse, y * inverse), tag);
}

__device__ __forceinline__ void combine(const Params& p, const TaskDescriptor& d, int half) {
  if (half * 64 >= p.head_dim) return;
#pragma unroll 1
  for (int item = d.tile_begin; item < d.tile_begin + d.tile_count; item++) combine_item(p, d.ordinal, d.layer, item, half);
  stamp(p, 12, d.layer);
}

}  // namespace pointcode::mk
