// Small kernels with one fault each (and one without), to see that the emulation finds it. For two warps.
#include <cuda_runtime.h>

#include "mk_ptx.cuh"

namespace {

using namespace pointcode::mk;

enum Fault : int { kSound, kNoWait, kDivergent, kArrivesTwice, kNeverArrives, kKeepsRegisters };

struct Arguments {
  const uint32_t* in;  // 64
  uint32_t* out;       // 64
  int fault;
};
struct Shared {
  alignas(16) uint32_t data[64];
  uint64_t full;
};

__global__ void copy_through_shared(const __grid_constant__ Arguments a) {
  Shared& s = *reinterpret_cast<Shared*>(dynamic_smem());
  if (threadIdx.x == 0) mbar_init(&s.full, 1);
  __syncthreads();
  if (a.fault ==
      kKeepsRegisters) {  // the first warp waits for the second one before it gives its registers back
    if (threadIdx.x >= 32) {
      set_more_registers<256>();
      mbar_arrive(&s.full, threadIdx.x == 32);
    }
    while (!mbar_try_wait(&s.full, 0)) spin_pause();
    if (threadIdx.x < 32) set_fewer_registers<128>();
    return;
  }
  if (threadIdx.x == 0) {
    if (a.fault != kNeverArrives) mbar_expect(&s.full, sizeof s.data);
    bulk_load(s.data, a.in, sizeof s.data, &s.full);
    if (a.fault == kArrivesTwice) mbar_arrive(&s.full);
  }
  if (a.fault == kNoWait) {
    __syncthreads();
  } else {
    while (!mbar_try_wait(&s.full, 0)) {
      if (a.fault == kNeverArrives) return;  // as a bounded wait would
    }
  }
  uint32_t v = s.data[threadIdx.x];
  if (a.fault == kDivergent) {
    if (threadIdx.x & 1)
      v = __shfl_xor_sync(~0u, v, 2);
    else
      v = __shfl_xor_sync(~0u, v, 4);
  }
  a.out[threadIdx.x] = __shfl_xor_sync(~0u, v, 1);
}

}  // namespace

extern "C" int run_faulty(const void* arguments) {
  void* args[] = {const_cast<void*>(arguments)};
  return cudaLaunchCooperativeKernel(copy_through_shared, dim3(1), dim3(64), args, sizeof(Shared),
                                     nullptr);
}
