// The codes of the block formats as unsigned bytes, 64 at a time, and the scales of their lanes;
// for the AVX-512 VNNI kernels alone (cpu_dot_avx512vnni.cc, which says how they are used).
#pragma once

#include <immintrin.h>

#include <cstring>

#include "cpu_dot_formats.h"

namespace pointcode {
namespace {

using dot::load_u16;
using dot::load_u32;

constexpr int kBlockValues = 32;
// Largest |q|, a little below the limit, because the product with the rounded inverse may end above
// it.
constexpr float kMax24 =
    8355000.f;  // 127 * 65536 + 127 * 256 + 127 = 8355711 is what three digits hold
constexpr float kMax23 = 4194000.f;  // 4 * 128 * 4194303 is what 32 bits hold

// Where the two halves (16 values) of activation block b go: chunk and first 16-byte piece, second
// piece at + step.
struct Place {
  int chunk, piece, step;
};
struct NaturalOrder {  // values in order
  static Place of(int b) { return {b / 2, b % 2 * 2, 1}; }
};
struct PairOrder {  // low nibbles of two blocks, then their high nibbles
  static Place of(int b) { return {b / 2, b % 2, 2}; }
};
struct KOrder {  // low nibbles of 64 bytes (sub-blocks 0 and 2), then their high nibbles (1 and 3)
  static Place of(int b) { return {b / 4 * 2 + b % 2, b % 4 / 2 * 2, 1}; }
};

__m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
__m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Lane i of the result is base[first + i / run % count] of the 16 values: which block's scale a
// lane needs.
template <int run, int count>
__m512 spread(__m512 values, int first) {
  alignas(64) static constexpr auto kIndex = [] {
    struct {
      int32_t lane[16];
    } index{};
    for (int i = 0; i < 16; ++i) index.lane[i] = i / run % count;
    return index;
  }();
  return _mm512_permutexvar_ps(
      _mm512_add_epi32(_mm512_load_si512(kIndex.lane), _mm512_set1_epi32(first)), values);
}

// fp16 pairs (d, m) at the start of up to 16 consecutive blocks, as 16 dwords.
template <int bytes>
__m512i block_heads(const uint8_t* p, int n) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), static_cast<__mmask16>((1u << n) - 1),
                                     _mm512_mullo_epi32(lane, _mm512_set1_epi32(bytes)), p, 1);
}
__m512 low_halves(__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
__m512 high_halves(__m512i v) { return low_halves(_mm512_srli_epi32(v, 16)); }

// [low nibbles of a | of b | high nibbles of a | of b] from 16 bytes each.
__m512i pair_nibbles(const uint8_t* a, const uint8_t* b) {
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(a)), load16(b), 1);
  const __m512i all =
      _mm512_inserti64x4(_mm512_castsi256_si512(both), _mm256_srli_epi16(both, 4), 1);
  return _mm512_and_si512(all, _mm512_set1_epi8(15));
}

// Adds the fifth bits of two blocks (32 each, in value order) to their nibbles.
__m512i add_fifth_bits(__m512i nibbles, uint32_t a, uint32_t b) {
  const uint64_t low = (a & 0xffffu) | b << 16, high = a >> 16 | (b & 0xffff0000u);
  return _mm512_mask_add_epi8(nibbles, low | high << 32, nibbles, _mm512_set1_epi8(16));
}

// --- formats of 32 values a block: a chunk is two blocks ---
template <int bytes, int zero_point, bool minimum>
struct SmallBlock {
  static constexpr int kBytes = bytes, kZeroPoint = zero_point;
  static constexpr bool kMinimum = minimum;
  static constexpr float kMaxQ = kMax24;
  using Order = PairOrder;
  static __m512 lane_scales(__m512 scales, int c) { return spread<4, 2>(scales, 2 * c); }
};
struct Q4_0 : SmallBlock<18, 8, false> {
  static __m512i codes(const uint8_t* a, const uint8_t* b) { return pair_nibbles(a + 2, b + 2); }
};
struct Q4_1 : SmallBlock<20, 0, true> {
  static __m512i codes(const uint8_t* a, const uint8_t* b) { return pair_nibbles(a + 4, b + 4); }
};
struct Q5_0 : SmallBlock<22, 16, false> {
  static __m512i codes(const uint8_t* a, const uint8_t* b) {
    return add_fifth_bits(pair_nibbles(a + 6, b + 6), load_u32(a + 2), load_u32(b + 2));
  }
};
struct Q5_1 : SmallBlock<24, 0, true> {
  static __m512i codes(const uint8_t* a, const uint8_t* b) {
    return add_fifth_bits(pair_nibbles(a + 8, b + 8), load_u32(a + 4), load_u32(b + 4));
  }
};
struct Q8_0 : SmallBlock<34, 128, false> {
  static constexpr float kMaxQ = kMax23;
  using Order = NaturalOrder;
  static __m512 lane_scales(__m512 scales, int c) { return spread<8, 2>(scales, 2 * c); }
  static __m512i codes(const uint8_t* a, const uint8_t* b) {
    const __m512i both =
        _mm512_inserti64x4(_mm512_castsi256_si512(load32(a + 2)), load32(b + 2), 1);
    return _mm512_xor_si512(both, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
};

// --- formats of 256 values a block: four chunks; `head` is fp32 [8 or 16 scales | 8 minima] ---
struct KBlock {
  static constexpr float kMaxQ = kMax24;
};
// scales, minima of Q4_K and Q5_K times d and -dmin: [8 scales | 8 minima].
__m512 k_head(const uint8_t* b) {
  const dot::KScales packed(b + 4);
  int64_t scales, minima;
  std::memcpy(&scales, packed.scale, 8);
  std::memcpy(&minima, packed.minimum, 8);
  const __m512 integers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_set_epi64x(minima, scales)));
  const __m512 d = _mm512_set1_ps(_cvtsh_ss(load_u16(b))),
               dmin = _mm512_set1_ps(-_cvtsh_ss(load_u16(b + 2)));
  return _mm512_mul_ps(integers, _mm512_mask_blend_ps(0xff00, d, dmin));
}
// chunk 2h: scales 4h and 4h + 2; chunk 2h + 1: 4h + 1 and 4h + 3; 8 lanes each
__m512 k_lane_scales(__m512 head, int c) {
  const __m512i first =
      _mm512_mask_blend_epi32(0xff00, _mm512_setzero_si512(), _mm512_set1_epi32(2));
  return _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(c / 2 * 4 + c % 2)), head);
}
__m512i k_nibbles(const uint8_t* qs, int c) {
  const __m512i bytes = _mm512_loadu_si512(qs + c / 2 * 64);
  return _mm512_and_si512(c % 2 ? _mm512_srli_epi16(bytes, 4) : bytes, _mm512_set1_epi8(15));
}
struct Q4_K : KBlock {
  static constexpr int kBytes = 144, kZeroPoint = 0;
  static constexpr bool kMinimum = true;
  using Order = KOrder;
  static __m512 head(const uint8_t* b) { return k_head(b); }
  static __m512 lane_scales(__m512 head, int c) { return k_lane_scales(head, c); }
  static __m512i codes(const uint8_t* b, int c) { return k_nibbles(b + 16, c); }
};
struct Q5_K : KBlock {
  static constexpr int kBytes = 176, kZeroPoint = 0;
  static constexpr bool kMinimum = true;
  using Order = KOrder;
  static __m512 head(const uint8_t* b) { return k_head(b); }
  static __m512 lane_scales(__m512 head, int c) { return k_lane_scales(head, c); }
  static __m512i codes(const uint8_t* b, int c) {
    const int bit = c / 2 * 4 + c % 2;  // of the first 32 values; the others' is 2 further
    const __m512i fifth = _mm512_broadcast_i64x4(load32(b + 16));
    const __m512i select = _mm512_inserti64x4(_mm512_set1_epi8(static_cast<char>(1 << bit)),
                                              _mm256_set1_epi8(static_cast<char>(4 << bit)), 1);
    const __m512i nibbles = k_nibbles(b + 48, c);
    return _mm512_mask_add_epi8(nibbles, _mm512_test_epi8_mask(fifth, select), nibbles,
                                _mm512_set1_epi8(16));
  }
};
struct Q6_K : KBlock {
  static constexpr int kBytes = 210, kZeroPoint = 32;
  static constexpr bool kMinimum = false;
  using Order = NaturalOrder;
  static __m512 head(const uint8_t* b) {
    const __m512 scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(b + 192)));
    return _mm512_mul_ps(scales, _mm512_set1_ps(_cvtsh_ss(load_u16(b + 208))));
  }
  static __m512 lane_scales(__m512 head, int c) { return spread<4, 4>(head, 4 * c); }
  static __m512i codes(const uint8_t* b, int c) {
    const __m512i nibbles = k_nibbles(b, c);
    const __m256i pairs = load32(b + 128 + c / 2 * 32);
    const __m512i upper =
        c % 2 ? _mm512_inserti64x4(_mm512_castsi256_si512(pairs), _mm256_srli_epi16(pairs, 2), 1)
              : _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_slli_epi16(pairs, 4)),
                                   _mm256_slli_epi16(pairs, 2), 1);
    // nibbles | (upper & 0x30)
    return _mm512_ternarylogic_epi32(nibbles, upper, _mm512_set1_epi8(0x30), 0xf8);
  }
};

}  // namespace
}  // namespace pointcode
