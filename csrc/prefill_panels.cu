// Rows of a chunk's hidden states as panels (prefill_gemm.h) of its pairs.
#include "prefill_gemm.h"

namespace pointcode::prefill {
namespace {

constexpr int kWarps = 8;
constexpr int kColumns = 256;  // that a warp moves at once, four panels

// A block's pairs, eight a warp, are one run of each of its four panels: 8 KB.
__global__ void __launch_bounds__(kWarps * 32) gather_kernel(const __grid_constant__ Gather g) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int n_columns = (g.k + kColumns - 1) / kColumns;
  const int column = static_cast<int>(blockIdx.x) % n_columns * kColumns + lane * 8;
  const int first = (static_cast<int>(blockIdx.x) / n_columns * kWarps + warp) * kRunUnit;
  if (first >= g.pitch || column >= g.k) return;
  uint4 values[kRunUnit];
  bool real[kRunUnit];
#pragma unroll
  for (int i = 0; i < kRunUnit; ++i) {
    const int from = g.source == nullptr ? first + i : g.source[first + i];
    real[i] = from >= 0 && from < g.n_tokens;
    if (real[i])
      values[i] = *reinterpret_cast<const uint4*>(g.x + static_cast<int64_t>(from) * g.k + column);
  }
  uint8_t* const run = g.panels + (static_cast<int64_t>(column / 64) * g.pitch + first) * 128;
#pragma unroll
  for (int i = 0; i < kRunUnit; ++i)
    if (real[i]) *reinterpret_cast<uint4*>(run + i * 128 + ((lane % 8 ^ i) << 4)) = values[i];
}

}  // namespace

cudaError_t launch_gather(const Gather& gather, cudaStream_t stream) {
  if (gather.k % 64 != 0 || gather.pitch % kRunUnit != 0) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config = {};
  const int n_blocks = (gather.pitch + kWarps * kRunUnit - 1) / (kWarps * kRunUnit);
  config.gridDim = dim3(static_cast<unsigned>(n_blocks * ((gather.k + kColumns - 1) / kColumns)));
  config.blockDim = dim3(kWarps * 32), config.stream = stream;
  return cudaLaunchKernelEx(&config, gather_kernel, gather);
}

}  // namespace pointcode::prefill
