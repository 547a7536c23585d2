// bfloat16 as CUDA has it: the high half of a float, rounded to nearest even.
#pragma once

#include "cuda_runtime.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 v) {
  return __uint_as_float(static_cast<uint32_t>(v.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16(float f) {
  const uint32_t u = __float_as_uint(f);
  if (f != f) return {0x7fff};
  return {static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float lo, float hi) {
  return {__float2bfloat16(lo), __float2bfloat16(hi)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
  return {__bfloat162float(v.x), __bfloat162float(v.y)};
}
