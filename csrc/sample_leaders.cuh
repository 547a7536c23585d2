// Of the leaders that a step's kernel leaves, one an SM and row: the row's, and whether it is the answer.
#pragma once

#include "sample_shared.cuh"

namespace pointcode::gpu {

// Whether the leaders say anything of a row.
__host__ __device__ inline bool is_led(const SampleParams& p, const SampleRow& row) {
  return p.n_leaders > 0 && row.is_plain() && row.n_logprobs == 0;
}
// Whether they will answer, whatever they are.
inline bool will_be_settled(const SampleParams& p, const SampleRow& row) {
  if (!is_led(p, row)) return false;
  if (row.temperature <= 0.f) return true;
  return row.draws_from_all(p.vocab) && row.top_p >= 1.f && row.min_p <= 0.f;
}

// The row's leader. Each warp finds it by itself.
__device__ __forceinline__ Leader leader_of_all(const SampleParams& p, int r) {
  Leader l = kNoLeader;
  const Leader* leaders = p.leaders + static_cast<size_t>(r) * p.n_leaders;
#pragma unroll 4
  for (int i = threadIdx.x & 31; i < p.n_leaders; i += 32) {
    const float4 raw = *reinterpret_cast<const float4*>(leaders + i);
    lead_by_logit(l, raw.x, __float_as_int(raw.y)), lead_by_score(l, raw.z, __float_as_int(raw.w));
  }
  return leader_of_lanes(l, 16);
}
// Whether the row draws at all: beside a logit that is not finite nothing can be drawn.
__device__ __forceinline__ bool draws(const SampleRow& row, const Leader& l) {
  return row.temperature > 0.f && isfinite(__fmul_rn(l.logit, __fdiv_rn(1.f, row.temperature)));
}
__device__ __forceinline__ bool is_settled(const SampleParams& p, const SampleRow& row,
                                           const Leader& l) {
  if (!draws(row, l)) return true;
  if (!row.draws_from_all(p.vocab)) return false;
  return l.drawn == l.token || (row.top_p >= 1.f && row.min_p <= 0.f);
}
__device__ __forceinline__ int32_t settled_token(const SampleRow& row, const Leader& l) {
  if (l.logit != l.logit) return 0;
  return draws(row, l) ? l.drawn : l.token;
}

}  // namespace pointcode::gpu
