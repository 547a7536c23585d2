// The host's twins of the PTX wrappers in csrc/prefill_ptx.cuh.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda_runtime.h"
#include "host_ptx.h"
#include "host_tile_map.h"

namespace pointcode::prefill {

inline uint32_t cluster_rank() { return static_cast<uint32_t>(host_cuda::cluster_rank()); }
inline void cluster_sync() { host_cuda::sync_cluster(); }
inline void arrive_at(uint64_t* bar, uint32_t rank) {
  host_cuda::arrive_in_cluster(bar, static_cast<int>(rank));
}
inline void bulk_load_to_all(void* dst, const void* src, uint32_t bytes, uint64_t* bar,
                             uint16_t mask) {
  host_cuda::copy_to_cluster(dst, src, bytes, bar, mask);
}
// Lands at once, chunk by chunk, and then tells the barrier as late as a copy of no bytes.
inline void tile_load(void* dst, const CUtensorMap& map, int column, int row, uint64_t* bar) {
  for (int r = 0; r < map.box_rows; r++)
    for (int i = 0; i < 64; i++) {
      const bool inside = row + r < map.rows && column + i < map.columns;
      const uint16_t value = inside ? map.matrix[(row + r) * map.columns + column + i] : 0;
      const auto place = reinterpret_cast<uint64_t>(dst) + static_cast<uint64_t>(r) * 128 +
                         static_cast<uint64_t>(i) * 2;
      *reinterpret_cast<uint16_t*>(place ^ ((place >> 7 & 7) << 4)) = value;
    }
  host_cuda::copy_async(dst, dst, static_cast<uint32_t>(map.box_rows) * 128, bar, false);
}
inline void bulk_store(void* dst, const void* src, uint32_t bytes) {
  host_cuda::store_async(dst, src, bytes);
}
inline void wait_until_read() { host_cuda::wait_for_stores(); }
inline void wait_until_stored() { host_cuda::wait_for_stores(); }
inline void fence_async_proxy() {}

inline void group_arrive(int id, int threads) {
  host_cuda::NamedBarrier& state = host_cuda::named_barrier(id);
  if (++state.arrived == threads) state.arrived = 0, state.turn++;
}
inline void group_barrier(int id, int threads) {
  host_cuda::NamedBarrier& state = host_cuda::named_barrier(id);
  const int turn = state.turn;
  group_arrive(id, threads);
  while (state.turn == turn) host_cuda::pause_in_spin();
}
template <int kId>
void group_barrier(int threads) {
  group_barrier(kId, threads);
}

struct StoreLane {
  uint32_t parts[4];
  uint8_t* row;
};
inline void store_matrices(uint8_t (*slots)[host_cuda::kSlotBytes], uint32_t) {
  StoreLane lanes[host_cuda::kWarpLanes];
  for (int i = 0; i < host_cuda::kWarpLanes; i++) std::memcpy(&lanes[i], slots[i], sizeof lanes[i]);
  for (int matrix = 0; matrix < 4; matrix++)
    for (int row = 0; row < 8; row++)
      for (int column = 0; column < 8; column++) {
        const uint32_t pair = lanes[4 * column + row / 2].parts[matrix];
        const auto value = static_cast<uint16_t>(row % 2 == 0 ? pair : pair >> 16);
        std::memcpy(lanes[8 * matrix + row].row + 2 * column, &value, sizeof value);
      }
}
inline void store_transposed(void* row, const uint32_t (&parts)[4],
                             std::source_location place = std::source_location::current()) {
  const StoreLane in = {{parts[0], parts[1], parts[2], parts[3]}, static_cast<uint8_t*>(row)};
  static_assert(sizeof in <= host_cuda::kSlotBytes);
  host_cuda::meet(&in, sizeof in, &store_matrices, place);
}

}  // namespace pointcode::prefill
