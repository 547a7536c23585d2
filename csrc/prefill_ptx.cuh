// PTX of the prefill kernels beyond that of the megakernel. A build for the host emulation takes C++ twins, as there.
#pragma once

#ifdef POINTCODE_HOST_CUDA
#include "host_prefill_ptx.h"
#else

#include <cuda_bf16.h>

#include <cstdint>

#include "mk_ptx.cuh"
#include "tile_map.h"

namespace pointcode::prefill {

// ---- clusters of blocks
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all blocks of the cluster; orders what they did to shared memory.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Arrives at the barrier that lies at `bar`'s place in the block of this rank.
__device__ __forceinline__ void arrive_at(uint64_t* bar, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(mk::smem_addr(bar)),
      "r"(rank)
      : "memory");
}
// A bulk copy to the same place in every block of `mask`; completes on each one's barrier.
__device__ __forceinline__ void bulk_load_to_all(void* dst, const void* src, uint32_t bytes,
                                                 uint64_t* bar, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(mk::smem_addr(dst)),
      "l"(src), "r"(bytes), "r"(mk::smem_addr(bar)), "h"(mask)
      : "memory");
}

// The box of a tile map (tile_map.h) whose first value lies at (column, row).
__device__ __forceinline__ void tile_load(void* dst, const CUtensorMap& map, int column, int row,
                                          uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(mk::smem_addr(dst)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(mk::smem_addr(bar))
      : "memory");
}

// ---- bulk copy: shared -> global
__device__ __forceinline__ void bulk_store(void* dst, const void* src, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::
          "l"(dst),
      "r"(mk::smem_addr(src)), "r"(bytes)
      : "memory");
}
// Until this thread's bulk stores have read what they store.
__device__ __forceinline__ void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_until_stored() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// What was written to shared memory the ordinary way can be read by bulk stores afterwards.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- threads
template <int kId>
__device__ __forceinline__ void group_barrier(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "r"(threads) : "memory");
}
// Counts as `threads` / 2 of those that the barrier waits for, without waiting.
__device__ __forceinline__ void group_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void group_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Four 8 x 8 matrices, transposed; lane 8 m + r gives the address of row r of matrix m.
__device__ __forceinline__ void store_transposed(void* row, const uint32_t (&parts)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   mk::smem_addr(row)),
               "r"(parts[0]), "r"(parts[1]), "r"(parts[2]), "r"(parts[3])
               : "memory");
}

}  // namespace pointcode::prefill

#endif
