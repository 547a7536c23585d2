// PTX of the prefill kernels beyond that of the megakernel. A build for the host emulation takes C++ twins, as there.
#pragma once

#ifdef POINTCODE_HOST_CUDA
#include "host_prefill_ptx.h"
#else

#include <cuda_bf16.h>

#include <cstdint>

#include "mk_ptx.cuh"

namespace pointcode::prefill {

// 16 bytes from global to shared memory, asynchronously; zeros when `real` is false (nothing is read then).
__device__ __forceinline__ void copy_or_zero(void* to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(mk::smem_addr(to)),
               "l"(from), "r"(real ? 16 : 0)
               : "memory");
}
// Arrives once when all earlier copies of this thread are done.
__device__ __forceinline__ void arrive_when_copied(uint64_t* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(mk::smem_addr(bar))
               : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// What was written to shared memory the ordinary way can be read by tensor cores afterwards.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
