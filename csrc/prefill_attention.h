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
  const __nv_bfloat16* q;  // (n_queries, groups, heads / groups + q_extra, kHeadDim)
  const float*
      cos;  // (n_queries, kHeadDim / 2): q's pairs are rotated by these; nullptr: they are not
  const float* sin;
  const __nv_bfloat16* k;  // (n_keys, groups, kHeadDim)
  const __nv_bfloat16* v;
  __nv_bfloat16* out;  // (n_queries, heads, kHeadDim)
  int32_t n_queries, n_keys, heads, groups;
  int32_t q_extra;  // heads of a group in q's rows that are no queries
  int32_t window;
  float scale;
};

// Queues it on the stream; does not wait. cudaErrorInvalidValue for sizes that it does not take.
cudaError_t launch_attention(const Attention& attention, int n_sms, cudaStream_t stream);

// k[t][g] and v[t][g] of qkv, whose rows hold, group by group, query heads, a key and a value; the keys' pairs are rotated
// as above.
struct SplitKv {
  const __nv_bfloat16* qkv;  // (n_tokens, groups, per_group + 2, kHeadDim)
  const float* cos;          // (n_tokens, kHeadDim / 2), or nullptr
  const float* sin;
  __nv_bfloat16* k;  // (n_tokens, groups, kHeadDim)
  __nv_bfloat16* v;
  int32_t n_tokens, groups, per_group;
};
cudaError_t launch_split_kv(const SplitKv& split, cudaStream_t stream);

}  // namespace pointcode::prefill
