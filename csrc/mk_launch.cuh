// How a kernel that runs a decode step is launched: one block per SM, and its start overlaps the end of the kernel before.
//
// The blocks wait for each other, so all of them must come to run at the same time. A cooperative launch would promise that
// and cost more; a plain one keeps it too: the grid has a block per SM, an SM holds one (asked once), and whoever holds an SM
// gives it back without waiting for us. Those are the sampler of the step before, which waits for the kernel before it
// alone, and prefill on other streams, no kernel of which waits for a decode step. Blocks that came first spin meanwhile,
// bounded. What it does not cover is a second engine on the same SMs (MPS): two half-resident steps would end in a
// barrier time-out.
//
// Programmatic launch: a block may start as soon as every block of the kernel before has called let_next_kernel_start() or
// has ended, and an SM is free. Nothing that the kernels before have written may be read, and nothing that they read may be
// written, before wait_for_earlier_kernels(). The task lists and the weights are not: a step reads its first ones before.
#pragma once

#include <cuda_runtime.h>

#include "mk_params.h"

namespace pointcode::mk {

inline cudaError_t make_ready(void (*kernel)(Params), int smem_bytes) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
  if (error != cudaSuccess) return error;
  int blocks = 0;
  const cudaError_t asked =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, smem_bytes);
  if (asked != cudaSuccess) return asked;
  return blocks >= 1 ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
}

inline cudaError_t launch_step(void (*kernel)(Params), const Params& p, int n_sms, int smem_bytes,
                               cudaStream_t stream) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(n_sms), config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = smem_bytes, config.stream = stream;
  config.attrs = &overlap, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace pointcode::mk
