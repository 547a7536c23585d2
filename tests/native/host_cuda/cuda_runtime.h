// The part of CUDA C++ that the kernels use, over host_cuda.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "host_cuda.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define threadIdx (::host_cuda::thread_index())
#define blockIdx (::host_cuda::block_index())

struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

// ---- runtime
enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorUnknown = 999
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
using cudaStream_t = void*;
struct dim3 : host_cuda::Dim {
  dim3(uint32_t x = 1) : Dim{x, 1, 1} {}  // NOLINT: as in CUDA
};
inline host_cuda::Dim gridDim;  // of the launch
template <typename F>
cudaError_t cudaFuncSetAttribute(F*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <typename P>
struct KernelCall {
  void (*kernel)(P);
  const P* argument;
  static void enter(const void* self) {
    const auto* call = static_cast<const KernelCall*>(self);
    call->kernel(*call->argument);
  }
};
enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    int programmaticStreamSerializationAllowed;
    struct {
      uint32_t x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
template <typename F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}
template <typename P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P),
                               const P& argument) {
  const KernelCall<P> call{kernel, &argument};
  ::gridDim = config->gridDim;
  uint32_t cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; i++)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      cluster = config->attrs[i].val.clusterDim.x;
  return host_cuda::run_grid(&KernelCall<P>::enter, &call, config->gridDim, config->blockDim,
                             config->dynamicSmemBytes, cluster) == 0
             ? cudaSuccess
             : cudaErrorUnknown;
}
template <typename P>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(P), dim3 grid, dim3 block, void** args,
                                        size_t shared_bytes, cudaStream_t) {
  const KernelCall<P> call{kernel, static_cast<const P*>(args[0])};
  return host_cuda::run_grid(&KernelCall<P>::enter, &call, grid, block, shared_bytes) == 0
             ? cudaSuccess
             : cudaErrorUnknown;
}

// ---- block and warp
inline void __syncthreads() { host_cuda::sync_block(); }
inline void __syncwarp(uint32_t = ~0u,
                       std::source_location place = std::source_location::current()) {
  host_cuda::meet(nullptr, 0, nullptr, place);
}
template <typename T>
T lane_value(uint8_t (*slots)[host_cuda::kSlotBytes], int lane) {
  T value;
  std::memcpy(&value, slots[lane], sizeof(T));
  return value;
}
template <typename T>
T __shfl_sync(uint32_t, T v, int from, int = 32,
              std::source_location place = std::source_location::current()) {
  return lane_value<T>(host_cuda::meet(&v, sizeof(T), nullptr, place), from & 31);
}
template <typename T>
T __shfl_xor_sync(uint32_t, T v, int mask, int = 32,
                  std::source_location place = std::source_location::current()) {
  return lane_value<T>(host_cuda::meet(&v, sizeof(T), nullptr, place), host_cuda::lane() ^ mask);
}
template <typename T>
T __shfl_up_sync(uint32_t, T v, int by, int = 32,
                 std::source_location place = std::source_location::current()) {
  const int from = host_cuda::lane() - by;
  const T other =
      lane_value<T>(host_cuda::meet(&v, sizeof(T), nullptr, place), from < 0 ? 0 : from);
  return from < 0 ? v : other;
}
template <typename T>
T __shfl_down_sync(uint32_t, T v, int by, int = 32,
                   std::source_location place = std::source_location::current()) {
  const int from = host_cuda::lane() + by;
  const T other =
      lane_value<T>(host_cuda::meet(&v, sizeof(T), nullptr, place), from > 31 ? 31 : from);
  return from > 31 ? v : other;
}
template <typename T, typename F>
T fold_lanes(T v, F f, std::source_location place) {
  auto* slots = host_cuda::meet(&v, sizeof(T), nullptr, place);
  T all = lane_value<T>(slots, 0);
  for (int i = 1; i < host_cuda::kWarpLanes; i++) all = f(all, lane_value<T>(slots, i));
  return all;
}
template <typename T>
T __reduce_max_sync(uint32_t, T v, std::source_location place = std::source_location::current()) {
  return fold_lanes(v, [](T a, T b) { return a > b ? a : b; }, place);
}
template <typename T>
T __reduce_min_sync(uint32_t, T v, std::source_location place = std::source_location::current()) {
  return fold_lanes(v, [](T a, T b) { return a < b ? a : b; }, place);
}
inline int __all_sync(uint32_t, int v,
                      std::source_location place = std::source_location::current()) {
  return fold_lanes(v != 0 ? 1 : 0, [](int a, int b) { return a & b; }, place);
}
inline uint32_t __ballot_sync(uint32_t, int v,
                              std::source_location place = std::source_location::current()) {
  const uint32_t mine = v != 0 ? 1u << host_cuda::lane() : 0u;
  return fold_lanes(mine, [](uint32_t a, uint32_t b) { return a | b; }, place);
}

// ---- memory
inline uint32_t atomicAdd(uint32_t* p, uint32_t v) {
  host_cuda::maybe_yield();
  const uint32_t old = *p;
  *p = old + v;
  return old;
}
inline uint32_t atomicExch(uint32_t* p, uint32_t v) {
  host_cuda::maybe_yield();
  const uint32_t old = *p;
  *p = v;
  return old;
}
template <typename T>
T __ldg(const T* p) {
  return *p;
}

// ---- arithmetic
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
inline uint32_t __float_as_uint(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline float __uint_as_float(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline void __threadfence_block() {}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline void sincospif(float x, float* sine, float* cosine) {
  const double angle = static_cast<double>(x) * 3.14159265358979323846;
  *sine = static_cast<float>(std::sin(angle)), *cosine = static_cast<float>(std::cos(angle));
}
