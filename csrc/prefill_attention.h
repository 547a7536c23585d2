// Causal attention of a prefill chunk. Hopper only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace pointcode::prefill {

constexpr int kHeadDim = 128;

// out[t][h] = softmax(scale * q[t][h] . k[s][g]) . v[s][g] over the keys s that token t sees: the last query sees the
// last key, and `window` > 0 counts the keys that one sees, its own included. All bf16; h / (heads / groups) is g.
struct Attention {
  const __nv_bfloat16* q;  // (n_queries, heads, kHeadDim)
  const __nv_bfloat16* k;  // (n_keys, groups, kHeadDim)
  const __nv_bfloat16* v;
  __nv_bfloat16* out;  // as q
  int32_t n_queries, n_keys, heads, groups;
  int32_t window;
  float scale;
};

// Queues it on the stream; does not wait. cudaErrorInvalidValue for sizes that it does not take.
cudaError_t launch_attention(const Attention& attention, int n_sms, cudaStream_t stream);

}  // namespace pointcode::prefill
