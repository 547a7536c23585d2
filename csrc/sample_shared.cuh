// Shared memory of the GPU sampler, the order of tokens (by value, then by id), and their masses.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "leader.cuh"
#include "sample.h"

namespace pointcode::gpu {

constexpr int kBlocks = 8, kThreads = 1024, kWarps = kThreads / 32, kBins = 2 * kThreads;
constexpr float kReach = 21.f;  // as in sampling.cc: what is further below the top cannot be drawn
constexpr float kMaxNoise = 17.5f;    // bound of the Gumbel noise of 24 bits
constexpr float kBinsPerUnit = 97.f;  // kReach * kBinsPerUnit < kBins
constexpr float kMassOne = 0x1p33f;   // fixed point of exp(x - top)
constexpr int kLowBits = 17;  // a mass is split in two so that 32,768 of them fit 32-bit cells

struct Best {  // the larger value, then the lower token
  float value = -INFINITY;
  int32_t token = kNoToken;
  __device__ __forceinline__ void offer(float v, int32_t t) {
    if (v > value || (v == value && t < token)) value = v, token = t;
  }
};

// Kept are tokens in bins before `bin`, and those in it whose key is at least `key`.
struct Cut {
  int32_t bin = kBins;
  uint64_t key = 0;
};

struct Found {  // the bin in which a running sum reaches its target
  int32_t bin;
  uint32_t count;
  uint64_t before, value;
};

struct Masses {  // of all tokens, and of those before one of them
  uint64_t total, before;
};

struct Shared {
  uint32_t count[kBins], low[kBins], high[kBins];
  Best warp_best[kWarps];
  double warp_sum[kWarps];
  uint64_t warp_scan[kWarps];
  Masses warp_masses[kWarps];
  Best best[2];  // exchange slots
  double sum[2];
  Masses masses[2];
  int32_t flag[2];
  Found found;
  uint64_t total_value;
  uint32_t total_count;
};

__device__ __forceinline__ uint32_t ordered(float f) {
  const uint32_t u = __float_as_uint(f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ uint64_t key_of(float x, int32_t token) {
  return static_cast<uint64_t>(ordered(x)) << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}
__device__ __forceinline__ uint64_t mass_of(float x, float top_x) {
  return __float2ull_rn(expf(__fsub_rn(x, top_x)) * kMassOne);
}
// The mass at which top_p ends.
__device__ __forceinline__ uint64_t target_of(const SampleRow& row, uint64_t total) {
  const double wanted = ceil(static_cast<double>(row.top_p) * static_cast<double>(total));
  return wanted < 1.0 ? 1 : static_cast<uint64_t>(wanted);
}
// How far below the top a token may be drawn.
__device__ __forceinline__ float reach_of(const SampleRow& row) {
  return row.min_p > 0.f ? fminf(kReach, -logf(row.min_p)) : kReach;
}

}  // namespace pointcode::gpu
