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
__device__ __noinline__ void combine_item(const Params& p, const Where& at, int layer, int item, int half) {
  const int lane = threadIdx.x & 31, hd = p.head_dim, heads = p.n_heads / p.n_kv_heads;
  const int row = item / p.n_heads, head = item % p.n_heads, group = head / heads;
  const uint32_t tag = tag_of(p, layer);
  const size_t stride = kMaxGroup * part_stride(hd);
  const uint8_t* first = part_of(p, row, group, 0) + (head % heads) * part_stride(hd);
  const auto f = [](uint32_t u) { return __uint_as_float(u); };

  uint4 k[2], v[1], q[1];  // four dims of k and q per lane; two dims of v
  const int kv_base = (row * p.n_kv_heads + group) * hd, my_dim = half * 64 + lane * 2;
  const bool has4 = lane * 4 < hd, has2 = my_dim < hd;
  const uint8_t* q_at = p.q + (static_cast<size_t>(row) * p.n_heads * hd + head * hd + lane * 4) * 4;
  gather<2>(at, tag, k, [&](int i) { return p.k_new + (kv_base + lane * 4 + 2 * i) * 8; }, [&](int) { return has4; });
  gather<1>(at, tag, v, [&](int) { return p.v_new + (kv_base + my_dim) * 8; }, [&](int) { return has2; });
  gather<1>(at, tag, q, [&](int) { return q_at; }, [&](int) { return has4; });
  const float2 qa = unpack_bf16(q[0].x), qb = unpack_bf16(q[0].z);
  float now = has4 ? f(k[0].x) * qa.x + f(k[0].z) * qa.y + f(k[1].x) * qb.x + f(k[1].z) * qb.y : 0.f;
#pragma unroll 1
  for (int i = 16; i; i >>= 1) now += __shfl_xor_sync(~0u, now, i);

  uint4 ml[2], o[kMaxSplits];  // ml[0]: split = lane; ml[1]: split 32
  const bool has_split[2] = {lane < p.n_splits, 32 < p.n_splits};
  gather<2>(at, tag, ml, [&](int i) { return first + (i ? 32 : lane) * stride + hd * 8; }, [&](int i) { return has_split[i]; });
  gather<kMaxSplits>(at, tag, o, [&](int i) { return first + i * stride + my_dim * 8; },
                     [&](int i) { return has2 && i < p.n_splits; });
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
    if (has2 && i < p.n_splits) x += w * f(o[i].x), y += w * f(o[i].z);
  }
  if (has2) put(p.attn, (row * p.n_heads * hd + head * hd + my_dim) >> 1, pack_bf16(x / sum, y / sum), tag);
}

__device__ __forceinline__ void combine(const Params& p, const Where& at, const TaskDescriptor& d, int half) {
  if (half * 64 >= p.head_dim) return;
#pragma unroll 1
  for (int item = d.tile_begin; item < d.tile_begin + d.tile_count; item++) combine_item(p, at, d.layer, item, half);
  stamp(p, 12, d.layer);
}

}  // namespace pointcode::mk
