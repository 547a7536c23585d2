// Block decoders of the weight formats, written over a set of vector operations V (16 fp32 lanes;
// see cpu_dot_*.cc). A decoder hands its values to a sink 16 at a time: sink.template
// put<parity>(k, w) gets w[k .. k + 16). Block layouts are those of GGUF files (struct names there:
// block_q4_0, block_q4_K, ...), little endian.
#pragma once

#include <cstdint>
#include <cstring>

namespace pointcode {
namespace dot {

inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

inline uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// fp16 d, then 32 x int8: w = d q.
template <class V>
struct Q8_0 {
  static constexpr int kBlock = 32, kBytes = 34;
  template <class Sink>
  static void block(const uint8_t* b, int k, Sink& sink) {
    const auto d = V::broadcast_half(b);
    sink.template put<0>(k, V::mul(V::i8(b + 2), d));
    sink.template put<1>(k + 16, V::mul(V::i8(b + 18), d));
  }
};

// fp16 d, 16 bytes of nibbles (low: values 0-15, high: 16-31): w = d (q - 8).
template <class V>
struct Q4_0 {
  static constexpr int kBlock = 32, kBytes = 18;
  template <class Sink>
  static void block(const uint8_t* b, int k, Sink& sink) {
    const auto d = V::broadcast_half(b);
    const auto lut = V::lut(d, V::mul(d, V::set1(-8.f)));
    const auto q = V::bytes(b + 2);
    sink.template put<0>(k, V::low(lut, q));
    sink.template put<1>(k + 16, V::high(lut, q));
  }
};

// fp16 d, fp16 m, nibbles: w = d q + m.
template <class V>
struct Q4_1 {
  static constexpr int kBlock = 32, kBytes = 20;
  template <class Sink>
  static void block(const uint8_t* b, int k, Sink& sink) {
    const auto lut = V::lut(V::broadcast_half(b), V::broadcast_half(b + 2));
    const auto q = V::bytes(b + 4);
    sink.template put<0>(k, V::low(lut, q));
    sink.template put<1>(k + 16, V::high(lut, q));
  }
};

// fp16 d, 32 fifth bits, nibbles: w = d (q - 16).
template <class V>
struct Q5_0 {
  static constexpr int kBlock = 32, kBytes = 22;
  template <class Sink>
  static void block(const uint8_t* b, int k, Sink& sink) {
    const auto d = V::broadcast_half(b);
    const auto lut = V::lut5(d, V::mul(d, V::set1(-16.f)));
    const auto q = V::bytes(b + 6);
    sink.template put<0>(k, V::low5(lut, q, load_u16(b + 2)));
    sink.template put<1>(k + 16, V::high5(lut, q, load_u16(b + 4)));
  }
};

// fp16 d, fp16 m, 32 fifth bits, nibbles: w = d q + m.
template <class V>
struct Q5_1 {
  static constexpr int kBlock = 32, kBytes = 24;
  template <class Sink>
  static void block(const uint8_t* b, int k, Sink& sink) {
    const auto lut = V::lut5(V::broadcast_half(b), V::broadcast_half(b + 2));
    const auto q = V::bytes(b + 8);
    sink.template put<0>(k, V::low5(lut, q, load_u16(b + 4)));
    sink.template put<1>(k + 16, V::high5(lut, q, load_u16(b + 6)));
  }
};

// The 8 six-bit scales and 8 six-bit minima of a K block, packed in 12 bytes.
struct KScales {
  uint8_t scale[8], minimum[8];
  explicit KScales(const uint8_t* p) {
    const uint32_t a = load_u32(p), b = load_u32(p + 4), c = load_u32(p + 8);
    const uint32_t words[4] = {
        a & 0x3f3f3f3fu,
        (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u),
        b & 0x3f3f3f3fu,
        ((c >> 4) & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u),
    };
    std::memcpy(scale, words, 8);
    std::memcpy(minimum, words + 2, 8);
  }
};

// fp16 d, fp16 dmin, KScales, 128 bytes of nibbles in four runs of 32 (low: 32 values, high: the
// next 32).
template <class V>
struct Q4_K {
  static constexpr int kBlock = 256, kBytes = 144;
  template <class Sink>
  static void block(const uint8_t* b, int k, Sink& sink) {
    const float d = V::half(b), dmin = V::half(b + 2);
    const KScales scales(b + 4);
    for (int j = 0; j < 4; ++j) {
      const auto low =
          V::lut(V::set1(d * scales.scale[2 * j]), V::set1(-dmin * scales.minimum[2 * j]));
      const auto high =
          V::lut(V::set1(d * scales.scale[2 * j + 1]), V::set1(-dmin * scales.minimum[2 * j + 1]));
      const auto q0 = V::bytes(b + 16 + 32 * j), q1 = V::bytes(b + 32 + 32 * j);
      sink.template put<0>(k + 64 * j, V::low(low, q0));
      sink.template put<1>(k + 64 * j + 16, V::low(low, q1));
      sink.template put<0>(k + 64 * j + 32, V::high(high, q0));
      sink.template put<1>(k + 64 * j + 48, V::high(high, q1));
    }
  }
};

// Like Q4_K with 32 bytes of fifth bits before the nibbles: bit 2j for the low run j, bit 2j + 1
// for the high one.
template <class V>
struct Q5_K {
  static constexpr int kBlock = 256, kBytes = 176;
  template <class Sink>
  static void block(const uint8_t* b, int k, Sink& sink) {
    const float d = V::half(b), dmin = V::half(b + 2);
    const KScales scales(b + 4);
    for (int j = 0; j < 4; ++j) {
      const auto low =
          V::lut5(V::set1(d * scales.scale[2 * j]), V::set1(-dmin * scales.minimum[2 * j]));
      const auto high =
          V::lut5(V::set1(d * scales.scale[2 * j + 1]), V::set1(-dmin * scales.minimum[2 * j + 1]));
      const uint32_t bits_low = V::bit_of_32_bytes(b + 16, 2 * j),
                     bits_high = V::bit_of_32_bytes(b + 16, 2 * j + 1);
      const auto q0 = V::bytes(b + 48 + 32 * j), q1 = V::bytes(b + 64 + 32 * j);
      sink.template put<0>(k + 64 * j, V::low5(low, q0, static_cast<uint16_t>(bits_low)));
      sink.template put<1>(k + 64 * j + 16,
                           V::low5(low, q1, static_cast<uint16_t>(bits_low >> 16)));
      sink.template put<0>(k + 64 * j + 32, V::high5(high, q0, static_cast<uint16_t>(bits_high)));
      sink.template put<1>(k + 64 * j + 48,
                           V::high5(high, q1, static_cast<uint16_t>(bits_high >> 16)));
    }
  }
};

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 x int8 scales, fp16 d: w = d scale (q -
// 32).
template <class V>
struct Q6_K {
  static constexpr int kBlock = 256, kBytes = 210;
  template <class Sink>
  static void block(const uint8_t* b, int k, Sink& sink) {
    const float d = V::half(b + 208);
    for (int half = 0; half < 2; ++half) {
      uint8_t q[128];
      V::join_six_bits(b + 64 * half, b + 128 + 32 * half, q);
      const auto* scales = reinterpret_cast<const int8_t*>(b + 192 + 8 * half);
      for (int i = 0; i < 8; i += 2) {
        const float s0 = d * scales[i], s1 = d * scales[i + 1];
        sink.template put<0>(k + 128 * half + 16 * i,
                             V::fma(V::u8(q + 16 * i), V::set1(s0), V::set1(-32.f * s0)));
        sink.template put<1>(k + 128 * half + 16 * i + 16,
                             V::fma(V::u8(q + 16 * i + 16), V::set1(s1), V::set1(-32.f * s1)));
      }
    }
  }
};

// Plain formats, two groups of 16 at a time; `tail` takes the last columns of a row whose length is
// no multiple of 32.
template <class V, auto Load, auto LoadSome, int Bytes>
struct Plain {
  static constexpr int kBlock = 32, kBytes = 32 * Bytes;
  template <class Sink>
  static void block(const uint8_t* b, int k, Sink& sink) {
    sink.template put<0>(k, Load(b));
    sink.template put<1>(k + 16, Load(b + 16 * Bytes));
  }
  template <class Sink>
  static void tail(const uint8_t* b, int k, int n, Sink& sink) {
    for (; n > 0; n -= 16, k += 16, b += 16 * Bytes) {
      sink.put_some(k, n < 16 ? LoadSome(b, n) : Load(b), n < 16 ? n : 16);
    }
  }
};
template <class V>
using F32 = Plain<V, &V::f32, &V::f32_some, 4>;
template <class V>
using F16 = Plain<V, &V::f16, &V::f16_some, 2>;
template <class V>
using Bf16 = Plain<V, &V::bf16, &V::bf16_some, 2>;

}  // namespace dot
}  // namespace pointcode
