// The host's twins of the PTX wrappers in csrc/mk_ptx.cuh: the same names, the same meaning.
#pragma once

#include <cuda_bf16.h>

#include <chrono>
#include <cstdint>

namespace pointcode::mk {

inline uint8_t* dynamic_smem() { return host_cuda::shared_memory(); }

// ---- mbarriers
inline void mbar_init(uint64_t* bar, int count) { host_cuda::barrier_init(bar, count); }
inline void mbar_expect(uint64_t* bar, uint32_t bytes) { host_cuda::barrier_arrive(bar, bytes); }
inline void mbar_arrive(uint64_t* bar) { host_cuda::barrier_arrive(bar, 0); }
inline void mbar_arrive(uint64_t* bar, int count) {
  while (count--) host_cuda::barrier_arrive(bar, 0);
}
inline bool mbar_try_wait(uint64_t* bar, uint32_t parity) {
  return host_cuda::barrier_wait(bar, parity);
}
inline bool mbar_test_wait(uint64_t* bar, uint32_t parity) {
  return host_cuda::barrier_test(bar, parity);
}
inline void mbar_init_fence() {}
inline void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
  host_cuda::copy_async(dst, src, bytes, bar);
}
inline void bulk_load_once(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
  bulk_load(dst, src, bytes, bar);
}
inline void prefetch_l2(const void*, uint32_t) {}

inline void order_before_copies() {}

// ---- global memory between SMs
inline void store_relaxed(void* p, uint64_t v) {
  host_cuda::maybe_yield();
  std::memcpy(p, &v, sizeof v);
}
inline uint4 load_volatile(const void* p) {
  host_cuda::maybe_yield();
  uint4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline uint32_t load_relaxed(const uint32_t* p) {
  host_cuda::maybe_yield();
  return *p;
}
inline uint32_t load_acquire(const uint32_t* p) { return load_relaxed(p); }
inline void add_release(uint32_t* p, uint32_t v) { atomicAdd(p, v); }
inline uint64_t global_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// ---- control (launches run one after the other)
inline void let_next_kernel_start() {}
inline void wait_for_earlier_kernels() {}
[[noreturn]] inline void exit_thread() { host_cuda::end_thread(); }
inline void spin_pause() { host_cuda::pause_in_spin(); }
inline const uint8_t* opaque(const uint8_t* p) { return p; }
template <int kRegisters>
void set_more_registers() {
  host_cuda::set_registers(kRegisters);
}
template <int kRegisters>
void set_fewer_registers() {
  host_cuda::set_registers(kRegisters);
}

// ---- arithmetic
inline uint32_t pack_bf16(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  uint32_t u;
  std::memcpy(&u, &v, sizeof u);
  return u;
}
inline float2 unpack_bf16(uint32_t v) {
  return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
}
inline float round_bf16(float v) { return __bfloat162float(__float2bfloat16(v)); }
inline float exp2_fast(float x) {
  const float y = std::exp2(x);
  return std::fpclassify(y) == FP_SUBNORMAL ? 0.f : y;
}

// mma.m16n8k16: lane 4 g + t holds A at rows g, g + 8 and columns 2 t, 2 t + 8 (each a pair), B at column
// g and rows 2 t, 2 t + 8, C at rows g, g + 8 and columns 2 t, + 1.
struct MmaLane {
  float c[4];
  uint32_t a[4], b[2];
};
inline void multiply(uint8_t (*slots)[host_cuda::kSlotBytes], uint32_t) {
  using Row = float __attribute__((vector_size(32)));  // of b and c
  float a[16][16];
  Row b[16], c[16];
  for (int lane = 0; lane < 32; lane++) {
    MmaLane in;
    std::memcpy(&in, slots[lane], sizeof in);
    const int g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 4; i++) {
      const float2 pair = unpack_bf16(in.a[i]);
      float* at = &a[g + (i & 1) * 8][2 * t + (i >> 1) * 8];
      at[0] = pair.x, at[1] = pair.y;
      c[g + (i >> 1) * 8][2 * t + (i & 1)] = in.c[i];
    }
    for (int i = 0; i < 2; i++) {
      const float2 pair = unpack_bf16(in.b[i]);
      b[2 * t + i * 8][g] = pair.x, b[2 * t + i * 8 + 1][g] = pair.y;
    }
  }
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++) c[m] += a[m][k] * b[k];
  for (int lane = 0; lane < 32; lane++) {
    const int g = lane >> 2, t = lane & 3;
    const float out[4] = {c[g][2 * t], c[g][2 * t + 1], c[g + 8][2 * t], c[g + 8][2 * t + 1]};
    std::memcpy(slots[lane], out, sizeof out);
  }
}
inline void mma_bf16(float (&c)[4], uint4 a, uint32_t b0, uint32_t b1,
                     std::source_location place = std::source_location::current()) {
  const MmaLane in = {{c[0], c[1], c[2], c[3]}, {a.x, a.y, a.z, a.w}, {b0, b1}};
  static_assert(sizeof in <= host_cuda::kSlotBytes);
  auto* slots = host_cuda::meet(&in, sizeof in, &multiply, place);
  std::memcpy(c, slots[host_cuda::lane()], sizeof c);
}

}  // namespace pointcode::mk
