// Vector operations on AVX2, FMA and F16C: two registers of 8 fp32 lanes.
#include "cpu_dot_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace pointcode {
namespace {

struct Avx2 {
  struct F {
    __m256 a, b;
  };
  struct Lut {
    F d, m;
  };
  using Lut5 = Lut;
  struct Bytes {
    __m256i a, b;  // 16 bytes, one per 32-bit lane
  };

  static F set1(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load_some(const float* p, int n) {
    float some[16] = {};
    std::memcpy(some, p, static_cast<size_t>(n) * 4);
    return load(some);
  }
  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
  }
  static void store_some(float* p, F v, int n) {
    float some[16];
    store(some, v);
    std::memcpy(p, some, static_cast<size_t>(n) * 4);
  }
  static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static float sum(F x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  // As in cpu_dot_avx512.cc; 2^n is applied in two halves so that subnormal results come out right.
  static __m256 power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static __m256 exp8(__m256 a) {
    a = _mm256_min_ps(_mm256_set1_ps(89.f), _mm256_max_ps(_mm256_set1_ps(-104.f), a));  // NaN stays
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(a, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), a);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
    __m256 p = _mm256_set1_ps(1.f / 720);
    for (const float c : {1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f}) {
      p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
    }
    const __m256i whole = _mm256_cvtps_epi32(n), half_n = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, power_of_two(half_n)),
                         power_of_two(_mm256_sub_epi32(whole, half_n)));
  }
  static F exp(F x) { return {exp8(x.a), exp8(x.b)}; }

  static float half(const uint8_t* p) { return _cvtsh_ss(dot::load_u16(p)); }
  static F broadcast_half(const uint8_t* p) { return set1(half(p)); }
  static __m128i load8(const uint8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  }
  static __m128i load16(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static Bytes bytes(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(load8(p)), _mm256_cvtepu8_epi32(load8(p + 8))};
  }
  static F to_float(Bytes q) { return {_mm256_cvtepi32_ps(q.a), _mm256_cvtepi32_ps(q.b)}; }
  static F u8(const uint8_t* p) { return to_float(bytes(p)); }
  static F i8(const uint8_t* p) {
    return to_float({_mm256_cvtepi8_epi32(load8(p)), _mm256_cvtepi8_epi32(load8(p + 8))});
  }
  static F f32(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static F f16(const uint8_t* p) {
    return {_mm256_cvtph_ps(load16(p)), _mm256_cvtph_ps(load16(p + 16))};
  }
  static __m256 bfloat8(const uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16));
  }
  static F bf16(const uint8_t* p) { return {bfloat8(p), bfloat8(p + 16)}; }
  template <auto Load, int Size>
  static F some(const uint8_t* p, int n) {
    uint8_t copy[64] = {};
    std::memcpy(copy, p, static_cast<size_t>(n) * Size);
    return Load(copy);
  }
  static F f32_some(const uint8_t* p, int n) { return some<&Avx2::f32, 4>(p, n); }
  static F f16_some(const uint8_t* p, int n) { return some<&Avx2::f16, 2>(p, n); }
  static F bf16_some(const uint8_t* p, int n) { return some<&Avx2::bf16, 2>(p, n); }

  static Lut lut(F d, F m) { return {d, m}; }
  static Lut5 lut5(F d, F m) { return {d, m}; }
  static Bytes low_nibbles(Bytes q) {
    const __m256i mask = _mm256_set1_epi32(15);
    return {_mm256_and_si256(q.a, mask), _mm256_and_si256(q.b, mask)};
  }
  static Bytes high_nibbles(Bytes q) {
    return {_mm256_srli_epi32(q.a, 4), _mm256_srli_epi32(q.b, 4)};
  }
  static F low(const Lut& t, Bytes q) { return fma(to_float(low_nibbles(q)), t.d, t.m); }
  static F high(const Lut& t, Bytes q) { return fma(to_float(high_nibbles(q)), t.d, t.m); }
  // 16 in every lane i whose bit i is set.
  static __m256i sixteens(int bits) {
    const __m256i bit =
        _mm256_srlv_epi32(_mm256_set1_epi32(bits), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_slli_epi32(_mm256_and_si256(bit, _mm256_set1_epi32(1)), 4);
  }
  static Bytes with_fifth(Bytes q, uint16_t bits) {
    return {_mm256_or_si256(q.a, sixteens(bits & 0xff)), _mm256_or_si256(q.b, sixteens(bits >> 8))};
  }
  static F low5(const Lut5& t, Bytes q, uint16_t bits) {
    return fma(to_float(with_fifth(low_nibbles(q), bits)), t.d, t.m);
  }
  static F high5(const Lut5& t, Bytes q, uint16_t bits) {
    return fma(to_float(with_fifth(high_nibbles(q), bits)), t.d, t.m);
  }
  static uint32_t bit_of_32_bytes(const uint8_t* p, int bit) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return static_cast<uint32_t>(
        _mm256_movemask_epi8(_mm256_sll_epi16(v, _mm_cvtsi32_si128(7 - bit))));
  }
  static void join_six_bits(const uint8_t* ql, const uint8_t* qh, uint8_t* q) {
    const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi8(0x30);
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(qh));
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ql));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ql + 32));
    const auto put = [&](uint8_t* out, __m256i nibbles, __m256i bits) {
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(out),
          _mm256_or_si256(_mm256_and_si256(nibbles, nibble), _mm256_and_si256(bits, upper)));
    };
    put(q, first, _mm256_slli_epi16(pairs, 4));
    put(q + 32, second, _mm256_slli_epi16(pairs, 2));
    put(q + 64, _mm256_srli_epi16(first, 4), pairs);
    put(q + 96, _mm256_srli_epi16(second, 4), _mm256_srli_epi16(pairs, 2));
  }
};

}  // namespace

const DotTable& dot_table_avx2() {
  static const DotTable table = dot::make_table<Avx2>(Isa::kAvx2);
  return table;
}

}  // namespace pointcode

#else

namespace pointcode {
const DotTable& dot_table_avx2() { return dot_table_portable(); }
}  // namespace pointcode

#endif
