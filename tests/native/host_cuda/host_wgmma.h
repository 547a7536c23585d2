// The host's twin of csrc/wgmma.cuh: the same names and the same layouts. Products are computed when they are issued.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda_runtime.h"
#include "host_ptx.h"

namespace pointcode::prefill {

inline uint64_t descriptor(const void* tile) { return reinterpret_cast<uint64_t>(tile) >> 4; }
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int N>
void pin(float (&)[N]) {}
template <int kLeft>
void wgmma_wait(std::source_location place = std::source_location::current()) {
  host_cuda::meet(nullptr, 0, nullptr,
                  place);  // no lane goes on before the products of all are done
}

inline uint64_t column_descriptor(const void* tile, uint32_t apart) {
  return reinterpret_cast<uint64_t>(tile) >> 4 | uint64_t{apart >> 4} << 44;
}

// The swizzle exchanges address bits 4 to 6 for their exclusive or with bits 7 to 9.
inline float value_at(uint64_t linear) {
  const uint64_t place = linear ^ ((linear >> 7 & 7) << 4);
  uint16_t bits;
  std::memcpy(&bits, reinterpret_cast<const void*>(place), sizeof bits);
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
template <bool kColumns>
float b_value(uint64_t descriptor, int n, int k) {
  const auto column = static_cast<uint64_t>(n), row = static_cast<uint64_t>(k);
  if (!kColumns) return value_at((descriptor << 4) + column * 128 + row * 2);
  const uint64_t start = (descriptor & ((uint64_t{1} << 44) - 1)) << 4;
  return value_at(start + column / 64 * (descriptor >> 44 << 4) + row * 128 + column % 64 * 2);
}

template <int N, bool kColumns = false>
struct Wgmma {
  static void run(float (&d)[N / 2], const uint4& a, uint64_t b, int add,
                  std::source_location place = std::source_location::current()) {
    auto* slots = host_cuda::meet(&a, sizeof a, nullptr, place);
    const int g = host_cuda::lane() / 4, t = host_cuda::lane() % 4;
    float rows[2][16];  // g and g + 8
    for (int from = 0; from < 4; from++) {
      uint32_t parts[4];
      std::memcpy(parts, slots[4 * g + from], sizeof parts);
      for (int i = 0; i < 4; i++) {
        const float2 pair = mk::unpack_bf16(parts[i]);
        rows[i % 2][2 * from + i / 2 * 8] = pair.x, rows[i % 2][2 * from + i / 2 * 8 + 1] = pair.y;
      }
    }
    for (int i = 0; i < N / 2; i++) {
      const int column = i / 4 * 8 + 2 * t + i % 2;
      float sum = add != 0 ? d[i] : 0.f;
      for (int k = 0; k < 16; k++) sum += rows[i / 2 % 2][k] * b_value<kColumns>(b, column, k);
      d[i] = sum;
    }
  }
};

}  // namespace pointcode::prefill
