// Products of a prefill chunk straight from the packed weights that decoding streams (engine/cuda/packing.py): no
// row-major copy of them is made. Hopper only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace pointcode::prefill {

constexpr int kTileRows =
    128;  // weight rows of a block; the matrices' rows must be a multiple of a cluster's
constexpr int kDepthUnit = 128;  // K must be a multiple
constexpr int kMaxBanks = 256;   // matrices of a bank
constexpr int kRunUnit = 8;      // `begins` are multiples

// For every matrix e of a bank and every pair p in [begins[e], ends[e]):  y = weights[e] (rows x k) . x[p] (k),
// and out[p] is y, or, gated, silu(gate) * up (rows / 2 values), where y holds gates and ups alternately in runs of
// eight. All of x, out and the weights are bf16, sums are fp32.
//
// "Panels" of a (pairs, n) matrix: (n / 64, pitch, 64) values; of pair p's 128 bytes in a panel, 16-byte chunk c lies
// at chunk c ^ (p % 8). A tile of pairs is one run of a panel then, in the order in which tensor cores take it.
struct Products {
  const uint8_t* weights;  // (n_banks, rows / 16, k_tiles, 512 bytes)
  const uint8_t* x;        // panels of (pairs, k)
  const int32_t* begins;   // (n_banks), multiples of kRunUnit
  const int32_t* ends;     // (n_banks)
  uint8_t* out;            // (pitch, rows) row-major; gated: panels of (pairs, rows / 2)
  int32_t n_banks, rows, k, k_tiles;
  int32_t pitch;  // pairs of a panel, those between the runs included; a multiple of kRunUnit
  bool gated;
};

// Queues the products on the stream; does not wait. `cluster` blocks (1 or 2) share their pairs' x.
// cudaErrorInvalidValue for sizes that it does not take.
cudaError_t launch_products(const Products& products, int cluster, int n_sms, cudaStream_t stream);

// Row source[p] of x for every pair p < pitch, as panels; pairs whose source is not a row of x are left out.
struct Gather {
  const __nv_bfloat16* x;  // (n_tokens, k)
  const int32_t* source;   // (pitch); nullptr: pair p is row p
  uint8_t* panels;         // of (pitch, k)
  int32_t n_tokens, k, pitch;
};
cudaError_t launch_gather(const Gather& gather, cudaStream_t stream);

}  // namespace pointcode::prefill
