// Vector operations on AVX-512 (F, BW, VL, DQ): one register of 16 fp32 lanes.
#include "cpu_dot_kernels.h"

#if defined(__AVX512F__)
#include <immintrin.h>

namespace pointcode {
namespace {

struct Avx512 {
  using F = __m512;
  struct Lut5 {
    __m512 below_16, from_16;
  };
  using Lut = __m512;     // weight of each 4-bit code, looked up by vpermps
  using Bytes = __m512i;  // 16 bytes, one per lane

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

  static F set1(float a) { return _mm512_set1_ps(a); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_some(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static void store_some(float* p, F a, int n) { _mm512_mask_storeu_ps(p, first(n), a); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static float sum(F a) { return _mm512_reduce_add_ps(a); }

  // exp by 2^n times a degree-6 polynomial on |r| <= ln(2) / 2; relative error below 2e-7.
  static F exp(F a) {
    a = _mm512_min_ps(set1(89.f), _mm512_max_ps(set1(-104.f), a));  // NaN stays
    const F n = _mm512_roundscale_ps(_mm512_mul_ps(a, set1(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    F r = _mm512_fnmadd_ps(n, set1(0.693145752f), a);
    r = _mm512_fnmadd_ps(n, set1(1.42860677e-6f), r);
    F p = set1(1.f / 720);
    for (const float c : {1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f}) p = fma(p, r, set1(c));
    return _mm512_scalef_ps(p, n);
  }

  static float half(const uint8_t* p) { return _cvtsh_ss(dot::load_u16(p)); }
  static F broadcast_half(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(dot::load_u16(p))));
  }
  static __m128i load16(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static F u8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load16(p))); }
  static F i8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(p))); }
  static F f32(const uint8_t* p) { return _mm512_loadu_ps(p); }
  static F from_halves(__m256i h) { return _mm512_cvtph_ps(h); }
  static F from_bfloats(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static F f16(const uint8_t* p) {
    return from_halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F bf16(const uint8_t* p) {
    return from_bfloats(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F f32_some(const uint8_t* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static F f16_some(const uint8_t* p, int n) {
    return from_halves(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static F bf16_some(const uint8_t* p, int n) {
    return from_bfloats(_mm256_maskz_loadu_epi16(first(n), p));
  }

  static F iota(float from) {
    return _mm512_add_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         set1(from));
  }
  static Lut lut(F d, F m) { return fma(iota(0.f), d, m); }
  static Lut5 lut5(F d, F m) { return {fma(iota(0.f), d, m), fma(iota(16.f), d, m)}; }
  static Bytes bytes(const uint8_t* p) { return _mm512_cvtepu8_epi32(load16(p)); }
  // vpermps looks at the low 4 bits of an index only, so the other nibble need not be cleared.
  static F low(Lut t, Bytes q) { return _mm512_permutexvar_ps(q, t); }
  static F high(Lut t, Bytes q) { return _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), t); }
  static F low5(const Lut5& t, Bytes q, uint16_t bits) {
    return _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(q, t.below_16), bits, q, t.from_16);
  }
  static F high5(const Lut5& t, Bytes q, uint16_t bits) {
    return low5(t, _mm512_srli_epi32(q, 4), bits);
  }
  static uint32_t bit_of_32_bytes(const uint8_t* p, int bit) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_test_epi8_mask(v, _mm256_set1_epi8(static_cast<char>(1 << bit)));
  }
  static void join_six_bits(const uint8_t* ql, const uint8_t* qh, uint8_t* q) {
    const __m512i low = _mm512_loadu_si512(ql);
    const __m512i pairs =
        _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(qh)));
    // 32 bytes of pairs: bits 0-1 and 2-3 belong to the low nibbles, 4-5 and 6-7 to the high ones.
    const __m512i nibble = _mm512_set1_epi8(15), upper = _mm512_set1_epi8(0x30);
    const __m512i both = _mm512_inserti64x4(_mm512_slli_epi16(pairs, 4),
                                            _mm512_castsi512_si256(_mm512_slli_epi16(pairs, 2)), 1);
    const __m512i both_high =
        _mm512_inserti64x4(pairs, _mm512_castsi512_si256(_mm512_srli_epi16(pairs, 2)), 1);
    _mm512_storeu_si512(
        q, _mm512_or_si512(_mm512_and_si512(low, nibble), _mm512_and_si512(both, upper)));
    _mm512_storeu_si512(q + 64, _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(low, 4), nibble),
                                                _mm512_and_si512(both_high, upper)));
  }
};

}  // namespace

const DotTable& dot_table_avx512() {
  static const DotTable table = dot::make_table<Avx512>(Isa::kAvx512);
  return table;
}

}  // namespace pointcode

#else

namespace pointcode {
const DotTable& dot_table_avx512() { return dot_table_portable(); }
}  // namespace pointcode

#endif
