// What every part of the sampler needs: a row's logits, walked by the cluster, and the exchanges between its blocks.
//
// Sync sites: every exchange is "write own shared memory, cluster barrier, read all eight blocks'
// memory". Exchanges alternate between two slots (a block that writes slot n & 1 has passed barrier
// n - 1, after which nobody reads it). Histograms are cleared after a second barrier. Blocks end
// after a last barrier, as others read their memory.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "sample.h"
#include "sample_shared.cuh"

namespace pointcode::gpu {

namespace cg = cooperative_groups;

struct SamplerCore {
  const SampleParams& p;
  const SampleRow& row;
  Shared& s;
  const int r;
  cg::cluster_group cluster = cg::this_cluster();
  uint32_t exchanges = 0;
  float inverse = 1.f, top_x = 0.f, threshold = 0.f;

  __device__ __forceinline__ const float* logits() const {
    return p.logits + static_cast<size_t>(r) * p.vocab;
  }
  __device__ __forceinline__ bool is_plain() const { return row.is_plain(); }

  // Calls f(token, logit) for this thread's tokens.
  template <typename F>
  __device__ __forceinline__ void each(F&& f) const {
    const int per_block = ((p.vocab + kBlocks - 1) / kBlocks + 3) / 4 * 4;
    const int begin = min(p.vocab, static_cast<int>(cluster.block_rank()) * per_block),
              end = min(p.vocab, begin + per_block);
    const float* x = logits();
    if (p.vocab % 4 == 0) {
#pragma unroll 4
      for (int t = begin + static_cast<int>(threadIdx.x) * 4; t < end; t += kThreads * 4) {
        const float4 v = *reinterpret_cast<const float4*>(x + t);
        f(t, v.x), f(t + 1, v.y), f(t + 2, v.z), f(t + 3, v.w);
      }
    } else {
#pragma unroll 1
      for (int t = begin + static_cast<int>(threadIdx.x); t < end; t += kThreads) f(t, x[t]);
    }
  }

  // The logit after bias, penalties and mask, in the CPU sampler's order and rounding.
  __device__ __forceinline__ float adjusted(int t, float x) const {
    const size_t at = static_cast<size_t>(row.sequence) * p.vocab + t;
    if (row.has_mask &&
        (p.masks[static_cast<size_t>(r) * p.mask_words + t / 32] >> (t % 32) & 1u) == 0)
      return -INFINITY;
    if (row.has_bias) x = __fadd_rn(x, p.bias[at]);
    const int n = row.has_penalties ? p.counts[at] : 0;
    if (n == 0) return x;
    x = x > 0.f ? __fdiv_rn(x, row.repetition_penalty) : __fmul_rn(x, row.repetition_penalty);
    return __fsub_rn(x, __fadd_rn(__fmul_rn(row.frequency_penalty, static_cast<float>(n)),
                                  row.presence_penalty));
  }
  __device__ __forceinline__ float value(int t, float x) const {
    return is_plain() ? x : adjusted(t, x);
  }

  // The best of all threads of the cluster, and whether any has `flag` set. A lane looks at one warp, then at one block, so
  // that no chain is longer than five.
  __device__ Best best_of_all(Best mine, bool& flag) {
    const int lane = threadIdx.x & 31;
    mine = best_of_lanes(mine, 16);
    if (lane == 0) s.warp_best[threadIdx.x / 32] = mine;
    const int any = __syncthreads_or(flag);
    const uint32_t slot = exchanges++ & 1;
    if (threadIdx.x < 32) {
      const Best b = best_of_lanes(s.warp_best[lane], 16);
      if (lane == 0) s.best[slot] = b, s.flag[slot] = any;
    }
    cluster.sync();
    const int other = lane % kBlocks;
    flag = __any_sync(~0u, *cluster.map_shared_rank(&s.flag[slot], other) != 0);
    return best_of_lanes(*cluster.map_shared_rank(&s.best[slot], other), kBlocks / 2);
  }
  static __device__ __forceinline__ Best best_of_lanes(Best mine, int widest) {
    static_assert(kWarps == 32 && 32 % kBlocks == 0);
#pragma unroll
    for (int i = 16; i; i >>= 1) {
      if (i > widest) continue;
      const float v = __shfl_xor_sync(~0u, mine.value, i);
      mine.offer(v, __shfl_xor_sync(~0u, mine.token, i));
    }
    return mine;
  }

  __device__ double sum_of_all(double mine) {
#pragma unroll 1
    for (int i = 16; i; i >>= 1) mine += __shfl_xor_sync(~0u, mine, i);
    if ((threadIdx.x & 31) == 0) s.warp_sum[threadIdx.x / 32] = mine;
    __syncthreads();
    const uint32_t slot = exchanges++ & 1;
    if (threadIdx.x == 0) {
      double total = 0;
#pragma unroll 1
      for (int w = 0; w < kWarps; w++) total += s.warp_sum[w];
      s.sum[slot] = total;
    }
    cluster.sync();
    double total = 0;
#pragma unroll 1
    for (int b = 0; b < kBlocks; b++) total += *cluster.map_shared_rank(&s.sum[slot], b);
    return total;
  }

  // Both sums over all threads, of whole numbers.
  __device__ Masses masses_of_all(Masses mine) {
    const int lane = threadIdx.x & 31;
    mine = masses_of_lanes(mine, 16);
    if (lane == 0) s.warp_masses[threadIdx.x / 32] = mine;
    __syncthreads();
    const uint32_t slot = exchanges++ & 1;
    if (threadIdx.x < 32) {
      const Masses m = masses_of_lanes(s.warp_masses[lane], 16);
      if (lane == 0) s.masses[slot] = m;
    }
    cluster.sync();
    return masses_of_lanes(*cluster.map_shared_rank(&s.masses[slot], lane % kBlocks), kBlocks / 2);
  }
  static __device__ __forceinline__ Masses masses_of_lanes(Masses mine, int widest) {
#pragma unroll
    for (int i = 16; i; i >>= 1) {
      if (i > widest) continue;
      mine.total += __shfl_xor_sync(~0u, mine.total, i);
      mine.before += __shfl_xor_sync(~0u, mine.before, i);
    }
    return mine;
  }
};

}  // namespace pointcode::gpu
