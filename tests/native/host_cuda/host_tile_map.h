// The host's twin of csrc/tile_map.h: the same boxes, the same places in shared memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda_runtime.h"

struct CUtensorMap {
  const uint16_t* matrix;
  int64_t rows, columns;
  int box_rows;
};

namespace pointcode::prefill {

inline cudaError_t make_tile_map(CUtensorMap* map, const void* matrix, int64_t rows,
                                 int64_t columns, int box_rows) {
  *map = {static_cast<const uint16_t*>(matrix), rows, columns, box_rows};
  return cudaSuccess;
}

}  // namespace pointcode::prefill
