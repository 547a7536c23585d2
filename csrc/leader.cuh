// Which token leads by logit, and by score: the highest score wins a draw (Gumbel's trick). The same in the megakernel and in
// the sampler, to the bit.
#pragma once

#include <cuda_runtime.h>

#include "leader.h"
#include "token_noise.h"

namespace pointcode {

__device__ __forceinline__ float gumbel(float noise) { return -logf(-log1pf(-noise)); }

// Whether a token of value x = logit / temperature scores at least `best`; `score` is set if it may. Most tokens cost no
// exact logarithm, as -log(-log1p(-v)) < -log(v).
__device__ __forceinline__ bool may_win(float x, float noise, float best, float& score) {
  if (x - __logf(noise) + 0.01f < best) return false;
  score = __fadd_rn(x, gumbel(noise));
  return true;
}

// Takes `token` where it leads; NaN stays.
__device__ __forceinline__ void lead_by_logit(Leader& l, float logit, int32_t token) {
  if (logit != logit || logit > l.logit || (logit == l.logit && token < l.token))
    l.logit = logit, l.token = token;
}
__device__ __forceinline__ void lead_by_score(Leader& l, float score, int32_t token) {
  if (score > l.score || (score == l.score && token < l.drawn)) l.score = score, l.drawn = token;
}
// The leader of what lanes apart by up to `widest` hold.
__device__ __forceinline__ Leader leader_of_lanes(Leader l, int widest) {
#pragma unroll 1
  for (int i = widest; i; i >>= 1) {
    const float logit = __shfl_xor_sync(~0u, l.logit, i), score = __shfl_xor_sync(~0u, l.score, i);
    const int32_t token = __shfl_xor_sync(~0u, l.token, i),
                  drawn = __shfl_xor_sync(~0u, l.drawn, i);
    lead_by_logit(l, logit, token), lead_by_score(l, score, drawn);
  }
  return l;
}

}  // namespace pointcode
