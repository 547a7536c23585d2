// Products of a prefill chunk straight from the packed weights that decoding streams (engine/cuda/packing.py): no
// row-major copy of them is made. Hopper only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace pointcode::prefill {

constexpr int kTileRows = 128;   // weight rows of a block; the matrices' rows must be a multiple
constexpr int kDepthUnit = 128;  // K must be a multiple
constexpr int kMaxBanks = 256;   // matrices of a bank

// For every matrix e of a bank and every pair p in [ends[e - 1], ends[e]):
//   y = weights[e] (rows x k) . x[source[p]] (k)
// and out[p] is y (rows values), or, gated, silu(gate) * up * scale[p] (rows / 2 values), where y holds gates and ups
// alternately in runs of eight. All of x, out and the weights are bf16, sums are fp32.
struct Products {
  const uint8_t* weights;  // (n_banks, rows / 16, k_tiles, 512 bytes)
  const __nv_bfloat16* x;  // (any, k)
  const int32_t* source;   // (pairs); nullptr: pair p reads row p
  const float* scale;      // (pairs); gated only, nullptr: 1
  const int32_t* ends;     // (n_banks)
  __nv_bfloat16* out;      // (pairs, rows or rows / 2)
  int32_t n_banks, rows, k, k_tiles;
  bool gated;
};

// Queues the products on the stream; does not wait. cudaErrorInvalidValue for sizes that it does not take.
cudaError_t launch_products(const Products& products, int n_sms, cudaStream_t stream);

}  // namespace pointcode::prefill
