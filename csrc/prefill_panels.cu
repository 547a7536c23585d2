// Rows of a chunk's hidden states as panels (prefill_gemm.h) of its pairs.
#include "prefill_gemm.h"

namespace pointcode::prefill {
namespace {

constexpr int kThreads = 256;

// A block's eight pairs are one run of every panel; a thread moves 16 bytes of each at a time.
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ Gather g) {
  const int first = static_cast<int>(blockIdx.x) * kRunUnit;
  for (int at = static_cast<int>(threadIdx.x); at < g.k / 8; at += kThreads) {
    uint4 values[kRunUnit];
    bool real[kRunUnit];
#pragma unroll
    for (int i = 0; i < kRunUnit; ++i) {
      const int from = g.source == nullptr ? first + i : g.source[first + i];
      real[i] = from >= 0 && from < g.n_tokens;
      if (real[i])
        values[i] =
            *reinterpret_cast<const uint4*>(g.x + static_cast<int64_t>(from) * g.k + at * 8);
    }
    uint8_t* const run = g.panels + (static_cast<int64_t>(at / 8) * g.pitch + first) * 128;
#pragma unroll
    for (int i = 0; i < kRunUnit; ++i)
      if (real[i]) *reinterpret_cast<uint4*>(run + i * 128 + ((at % 8 ^ i) << 4)) = values[i];
  }
}

}  // namespace

cudaError_t launch_gather(const Gather& gather, cudaStream_t stream) {
  if (gather.k % 64 != 0 || gather.pitch % kRunUnit != 0) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(gather.pitch / kRunUnit));
  config.blockDim = dim3(kThreads), config.stream = stream;
  return cudaLaunchKernelEx(&config, gather_kernel, gather);
}

}  // namespace pointcode::prefill
