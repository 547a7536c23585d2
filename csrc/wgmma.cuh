// wgmma with A in registers and B in shared memory: D (64 x N, fp32) (+)= A (64 x 16) . B (16 x N), bf16.
//
// Warp i of the warpgroup holds rows 16 i .. 16 i + 15 of A and D; lane 4 g + t holds, of A, {row g, row g + 8} x
// columns {2 t, 2 t + 8} in the order x = (g, 2t), y = (g + 8, 2t), z = (g, 2t + 8), w = (g + 8, 2t + 8) (pairs), and
// of D, d[4 j + 2 h + e] = (row g + 8 h, column 8 j + 2 t + e). B is K-major with the 128-byte swizzle: see descriptor().
#pragma once

#ifdef POINTCODE_HOST_CUDA
#include "host_wgmma.h"
#else

#include <cuda_runtime.h>

#include <cstdint>

#include "mk_ptx.cuh"

namespace pointcode::prefill {

// A tile of rows of 64 bf16 values (128 bytes), whose 16-byte chunk c of row r lies at chunk c ^ (r % 8), from a
// 1024-byte boundary on. The next 16 columns lie 2 further (32 bytes).
__device__ __forceinline__ uint64_t descriptor(const void* tile) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kBetweenEightRows = uint64_t{1024 >> 4} << 32;
  const uint32_t smem = mk::smem_addr(tile);
  return kSwizzle128 | kBetweenEightRows | (uint64_t{1} << 16) | ((smem & 0x3ffff) >> 4);
}

// The same for a B whose columns lie side by side: blocks of 64 columns, `apart` bytes from each other, of rows of K (128
// bytes), swizzled alike. The next 16 rows lie 128 further (2,048 bytes).
__device__ __forceinline__ uint64_t column_descriptor(const void* tile, uint32_t apart) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kBetweenEightRows = uint64_t{1024 >> 4} << 32;
  const uint32_t smem = mk::smem_addr(tile);
  return kSwizzle128 | kBetweenEightRows | (uint64_t{apart >> 4} << 16) | ((smem & 0x3ffff) >> 4);
}

// Before the first product, and whenever registers that it reads were written.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when at most `kLeft` committed groups of this warpgroup are unfinished.
template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// Keeps the compiler from moving what is done with the values past a wait.
template <int N>
__device__ __forceinline__ void pin(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// run(d, a, b, add): `add` 0 starts a sum, 1 goes on. kColumns: b is a column_descriptor.
template <int N, bool kColumns = false>
struct Wgmma;

// clang-format off
#define D8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

template <bool kColumns>
struct Wgmma<128, kColumns> {
  static __device__ __forceinline__ void run(float (&d)[64], const uint4& a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
        : D8(d, 0), D8(d, 8), D8(d, 16), D8(d, 24), D8(d, 32), D8(d, 40), D8(d, 48), D8(d, 56)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add), "n"(kColumns ? 1 : 0));
  }
};

template <bool kColumns>
struct Wgmma<192, kColumns> {
  static __device__ __forceinline__ void run(float (&d)[96], const uint4& a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %101, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "{%96, %97, %98, %99}, %100, p, 1, 1, %102;\n}\n"
        : D8(d, 0), D8(d, 8), D8(d, 16), D8(d, 24), D8(d, 32), D8(d, 40), D8(d, 48), D8(d, 56), D8(d, 64), D8(d, 72), D8(d, 80), D8(d, 88)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add), "n"(kColumns ? 1 : 0));
  }
};

template <bool kColumns>
struct Wgmma<256, kColumns> {
  static __device__ __forceinline__ void run(float (&d)[128], const uint4& a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, p, 1, 1, %134;\n}\n"
        : D8(d, 0), D8(d, 8), D8(d, 16), D8(d, 24), D8(d, 32), D8(d, 40), D8(d, 48), D8(d, 56), D8(d, 64), D8(d, 72), D8(d, 80), D8(d, 88), D8(d, 96), D8(d, 104), D8(d, 112), D8(d, 120)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add), "n"(kColumns ? 1 : 0));
  }
};

#undef D8
// clang-format on

}  // namespace pointcode::prefill

#endif
