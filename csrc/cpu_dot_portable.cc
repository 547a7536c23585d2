// Vector operations without intrinsics: 16 lanes in an array, which the compiler may vectorise for
// the baseline CPU.
#include <cmath>

#include "cpu_dot_kernels.h"

namespace pointcode {
namespace {

struct Portable {
  struct F {
    float v[16];
  };
  struct Lut {
    F d, m;
  };
  using Lut5 = Lut;
  struct Bytes {
    const uint8_t* p;
  };

  template <class Function>
  static F map(Function&& function) {
    F out;
    for (int i = 0; i < 16; ++i) out.v[i] = function(i);
    return out;
  }
  static F set1(float a) {
    return map([a](int) { return a; });
  }
  static F load(const float* p) {
    return map([p](int i) { return p[i]; });
  }
  static F load_some(const float* p, int n) {
    return map([p, n](int i) { return i < n ? p[i] : 0.f; });
  }
  static void store(float* p, F a) { std::memcpy(p, a.v, sizeof(a.v)); }
  static void store_some(float* p, F a, int n) { std::memcpy(p, a.v, static_cast<size_t>(n) * 4); }
  static F fma(F a, F b, F c) {
    return map([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static F mul(F a, F b) {
    return map([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F add(F a, F b) {
    return map([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return map([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F div(F a, F b) {
    return map([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F exp(F a) {
    return map([&](int i) { return std::exp(a.v[i]); });
  }
  static float sum(F a) {
    for (int step = 8; step > 0; step /= 2) {
      for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
    }
    return a.v[0];
  }

  static float from_bits(uint32_t bits) {
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
  }
  // fp16 to fp32: shift into place and rescale by 2^112, which also maps subnormals; infinities and
  // NaNs apart.
  static float half(const uint8_t* p) {
    const uint32_t h = dot::load_u16(p);
    const uint32_t sign = (h & 0x8000u) << 16;
    if ((h & 0x7c00u) == 0x7c00u) return from_bits(sign | 0x7f800000u | (h & 0x3ffu) << 13);
    const float magnitude = from_bits((h & 0x7fffu) << 13) * 0x1p112f;
    return sign ? -magnitude : magnitude;
  }
  static float bfloat(const uint8_t* p) {
    return from_bits(static_cast<uint32_t>(dot::load_u16(p)) << 16);
  }
  static float single(const uint8_t* p) { return from_bits(dot::load_u32(p)); }
  static F broadcast_half(const uint8_t* p) { return set1(half(p)); }

  static F u8(const uint8_t* p) {
    return map([p](int i) { return static_cast<float>(p[i]); });
  }
  static F i8(const uint8_t* p) {
    return map([p](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
  }
  static F f32(const uint8_t* p) {
    return map([p](int i) { return single(p + 4 * i); });
  }
  static F f16(const uint8_t* p) {
    return map([p](int i) { return half(p + 2 * i); });
  }
  static F bf16(const uint8_t* p) {
    return map([p](int i) { return bfloat(p + 2 * i); });
  }
  static F f32_some(const uint8_t* p, int n) {
    return map([p, n](int i) { return i < n ? single(p + 4 * i) : 0.f; });
  }
  static F f16_some(const uint8_t* p, int n) {
    return map([p, n](int i) { return i < n ? half(p + 2 * i) : 0.f; });
  }
  static F bf16_some(const uint8_t* p, int n) {
    return map([p, n](int i) { return i < n ? bfloat(p + 2 * i) : 0.f; });
  }

  static Lut lut(F d, F m) { return {d, m}; }
  static Lut5 lut5(F d, F m) { return {d, m}; }
  static Bytes bytes(const uint8_t* p) { return {p}; }
  static F low(const Lut& t, Bytes q) {
    return map([&](int i) { return static_cast<float>(q.p[i] & 15) * t.d.v[i] + t.m.v[i]; });
  }
  static F high(const Lut& t, Bytes q) {
    return map([&](int i) { return static_cast<float>(q.p[i] >> 4) * t.d.v[i] + t.m.v[i]; });
  }
  static F low5(const Lut5& t, Bytes q, uint16_t bits) {
    return map([&](int i) {
      return static_cast<float>((q.p[i] & 15) + (bits >> i & 1) * 16) * t.d.v[i] + t.m.v[i];
    });
  }
  static F high5(const Lut5& t, Bytes q, uint16_t bits) {
    return map([&](int i) {
      return static_cast<float>((q.p[i] >> 4) + (bits >> i & 1) * 16) * t.d.v[i] + t.m.v[i];
    });
  }
  static uint32_t bit_of_32_bytes(const uint8_t* p, int bit) {
    uint32_t mask = 0;
    for (int i = 0; i < 32; ++i) mask |= static_cast<uint32_t>(p[i] >> bit & 1) << i;
    return mask;
  }
  // 128 six-bit values: nibbles of ql (64 bytes), bit pairs of qh (32 bytes).
  static void join_six_bits(const uint8_t* ql, const uint8_t* qh, uint8_t* q) {
    for (int i = 0; i < 32; ++i) {
      q[i] = static_cast<uint8_t>((ql[i] & 15) | (qh[i] & 3) << 4);
      q[i + 32] = static_cast<uint8_t>((ql[i + 32] & 15) | (qh[i] >> 2 & 3) << 4);
      q[i + 64] = static_cast<uint8_t>(ql[i] >> 4 | (qh[i] >> 4 & 3) << 4);
      q[i + 96] = static_cast<uint8_t>(ql[i + 32] >> 4 | qh[i] >> 6 << 4);
    }
  }
};

}  // namespace

const DotTable& dot_table_portable() {
  static const DotTable table = dot::make_table<Portable>(Isa::kPortable);
  return table;
}

}  // namespace pointcode
