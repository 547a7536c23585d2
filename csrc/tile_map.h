// Maps of row-major bf16 matrices, by which tensor copies (TMA) bring boxes of them to shared memory.
#pragma once

#ifdef POINTCODE_HOST_CUDA
#include "host_tile_map.h"
#else

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace pointcode::prefill {

// Boxes of 64 columns (128 bytes) x `box_rows` of a (rows, columns) matrix; what lies outside is zero. In shared memory,
// from a 1024-byte boundary on, the 16-byte chunk c of row r lies at chunk c ^ (r % 8).
inline cudaError_t make_tile_map(CUtensorMap* map, const void* matrix, int64_t rows,
                                 int64_t columns, int box_rows) {
  static decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  if (encode == nullptr) {
    cudaDriverEntryPointQueryResult found;
    void* entry = nullptr;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) return error;
    if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
    encode = reinterpret_cast<decltype(encode)>(entry);
  }
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t pitch[1] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), sizes, pitch, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace pointcode::prefill

#endif
