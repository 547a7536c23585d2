// Block formats on AVX-512 VNNI: exact integer products of the stored codes with 24-bit fixed-point
// activations.
//
// A block of 32 activations becomes integers q = round(x / s) of 24 bits (23 for Q8_0), s its own
// scale, split into three signed bytes (digits). A lane of vpdpbusd adds 4 products of a digit and
// unsigned weight codes; shifted together the three digits give the exact sum of code * q in 32
// bits. So the only roundings are those of q (half of 2^-23 of the block's largest value, about
// what fp32 itself resolves) and of the fp32 sum over lanes and blocks. Against fp32 arithmetic
// this saves the conversion of every weight: 64 weights cost about 17 vector instructions instead
// of 30.
//
// Activations are packed in chunks of 64 values whose order is the one in which a format's codes
// come out of its nibbles.
#include <cstring>
#include <type_traits>

#include "cpu_dot.h"
#include "cpu_dot_formats.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>

namespace pointcode {
namespace {

using dot::load_u16;
using dot::load_u32;

struct XChunk {
  int8_t digit[3][64];     // most significant first
  float scale[16];         // of each lane's 4 values
  int32_t correction[16];  // (zero point of the weight format) * sum of the lane's 4 q, negated
};
static_assert(sizeof(XChunk) == 320);

constexpr int kBlockValues = 32;
// The hardware prefetcher stops at 4 KB pages; fetching this far ahead gained 10-15 % on weights in
// memory.
constexpr int kPrefetchBytes = 1024;
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

template <class Format>
constexpr bool kIsSmall = !std::is_base_of_v<KBlock, Format>;

int n_chunks(int cols) { return (cols / kBlockValues + 1) / 2; }
// Sums of the activation blocks follow the chunks: one float a block, or for 256-value formats [8
// zeros | 8 sums].
int n_sums(int cols) { return (cols / kBlockValues + 15) / 16 * 16 * 2; }

int64_t packed_bytes(int32_t cols) {
  return n_chunks(cols) * static_cast<int64_t>(sizeof(XChunk)) + n_sums(cols) * 4;
}

// 4 x the sum of the lane's four values of each digit vector, shifted together.
__m128i lane_sums(__m128i high, __m128i middle, __m128i low) {
  const __m128i ones = _mm_set1_epi8(1);
  __m128i sum = _mm_slli_epi32(_mm_dpbusd_epi32(_mm_setzero_si128(), ones, high), 8);
  sum = _mm_slli_epi32(_mm_dpbusd_epi32(sum, ones, middle), 8);
  return _mm_dpbusd_epi32(sum, ones, low);
}

// 16 values as digits into one piece of a chunk.
template <class Format>
void pack_piece(const float* x, float inverse, float scale, XChunk& chunk, int piece) {
  const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse)));
  // signed digits: the lowest byte as it is, the rest rounded so that the sum is q again
  const __m512i rest = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
  const __m512i top = _mm512_srai_epi32(_mm512_add_epi32(rest, _mm512_set1_epi32(128)), 8);
  const __m128i low = _mm512_cvtepi32_epi8(q), middle = _mm512_cvtepi32_epi8(rest),
                high = _mm512_cvtepi32_epi8(top);
  _mm_store_si128(reinterpret_cast<__m128i*>(chunk.digit[0] + 16 * piece), high);
  _mm_store_si128(reinterpret_cast<__m128i*>(chunk.digit[1] + 16 * piece), middle);
  _mm_store_si128(reinterpret_cast<__m128i*>(chunk.digit[2] + 16 * piece), low);
  _mm_store_ps(chunk.scale + 4 * piece, _mm_set1_ps(scale));
  const __m128i zero_point = _mm_set1_epi32(-Format::kZeroPoint);
  _mm_store_si128(reinterpret_cast<__m128i*>(chunk.correction + 4 * piece),
                  _mm_mullo_epi32(lane_sums(high, middle, low), zero_point));
}

template <class Format>
void pack(const float* x, int32_t cols, uint8_t* out) {
  auto* chunks = reinterpret_cast<XChunk*>(out);
  auto* sums = reinterpret_cast<float*>(chunks + n_chunks(cols));
  const int n_blocks = cols / kBlockValues;
  std::memset(sums, 0, static_cast<size_t>(n_sums(cols)) * 4);
  if (n_blocks % 2 != 0) std::memset(&chunks[n_chunks(cols) - 1], 0, sizeof(XChunk));
  for (int b = 0; b < n_blocks; ++b, x += kBlockValues) {
    const __m512 first = _mm512_loadu_ps(x), second = _mm512_loadu_ps(x + 16);
    const float sum = _mm512_reduce_add_ps(_mm512_add_ps(first, second));
    const float top =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
    const float inverse = top > 1e-30f ? Format::kMaxQ / top : 0.f;
    const float scale =
        top / Format::kMaxQ + 0.f * sum;  // infinities and NaNs reach the result through the scale
    const Place place = Format::Order::of(b);
    pack_piece<Format>(x, inverse, scale, chunks[place.chunk], place.piece);
    pack_piece<Format>(x + 16, inverse, scale, chunks[place.chunk], place.piece + place.step);
    sums[kIsSmall<Format> ? b : b / 8 * 16 + 8 + b % 8] = sum;
  }
}

// The packed activations of R rows (spare ones repeat row 0) and their accumulators.
template <class Format, int R>
struct Accumulator {
  const XChunk* chunks[R];
  const float* sums[R];
  __m512 acc[R];

  explicit Accumulator(const DotJob& job) {
    for (int r = 0; r < R; ++r) {
      chunks[r] = reinterpret_cast<const XChunk*>(job.packed + (r < job.n_rows ? r : 0) *
                                                                   packed_bytes(job.cols));
      sums[r] = reinterpret_cast<const float*>(chunks[r] + n_chunks(job.cols));
    }
  }
  void clear() {
    for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
  }
  inline __attribute__((always_inline)) void add_chunk(__m512i codes, __m512 scales, int c) {
    for (int r = 0; r < R; ++r) {
      const XChunk& x = chunks[r][c];
      __m512i sum =
          _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, _mm512_load_si512(x.digit[0]));
      sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), codes, _mm512_load_si512(x.digit[1]));
      sum = _mm512_slli_epi32(sum, 8);
      if constexpr (Format::kZeroPoint != 0)
        sum = _mm512_add_epi32(sum, _mm512_load_si512(x.correction));
      sum = _mm512_dpbusd_epi32(sum, codes, _mm512_load_si512(x.digit[2]));
      acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum),
                               _mm512_mul_ps(scales, _mm512_load_ps(x.scale)), acc[r]);
    }
  }
  inline __attribute__((always_inline)) void add_minima(__m512 minima, int first) {
    for (int r = 0; r < R; ++r)
      acc[r] = _mm512_fmadd_ps(minima, _mm512_load_ps(sums[r] + first), acc[r]);
  }
};

template <class Format, int R>
inline __attribute__((always_inline)) void dot_small(const uint8_t* row, int n_blocks,
                                                     Accumulator<Format, R>& total) {
  for (int g = 0; g < n_blocks; g += 16) {
    const int n = n_blocks - g < 16 ? n_blocks - g : 16;
    const uint8_t* block = row + g * Format::kBytes;
    const __m512i heads = block_heads<Format::kBytes>(block, n);
    const __m512 scales = low_halves(heads);
    if constexpr (Format::kMinimum) total.add_minima(high_halves(heads), g);
    int c = 0;
    for (; 2 * c + 1 < n; ++c, block += 2 * Format::kBytes) {
      _mm_prefetch(reinterpret_cast<const char*>(block + kPrefetchBytes), _MM_HINT_T0);
      total.add_chunk(Format::codes(block, block + Format::kBytes), Format::lane_scales(scales, c),
                      g / 2 + c);
    }
    // an odd last block: its partner's activations are zeros
    if (2 * c < n)
      total.add_chunk(Format::codes(block, block), Format::lane_scales(scales, c), g / 2 + c);
  }
}

template <class Format, int R>
inline __attribute__((always_inline)) void dot_large(const uint8_t* row, int n_blocks,
                                                     Accumulator<Format, R>& total) {
  for (int b = 0; b < n_blocks; ++b, row += Format::kBytes) {
    const __m512 head = Format::head(row);
    if constexpr (Format::kMinimum) total.add_minima(head, 16 * b);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c)
      total.add_chunk(Format::codes(row, c), Format::lane_scales(head, c), 4 * b + c);
  }
}

template <class Format, int R>
void dot_rows(const DotJob& job) {
  Accumulator<Format, R> total(job);
  for (int i = 0; i < job.n_weights; ++i) {
    total.clear();
    const uint8_t* row = job.weights + i * job.row_bytes;
    if constexpr (kIsSmall<Format>) {
      dot_small<Format, R>(row, job.cols / kBlockValues, total);
    } else {
      dot_large<Format, R>(row, job.cols / 256, total);
    }
    for (int r = 0; r < R && r < job.n_rows; ++r)
      job.y[r * job.y_stride + i] = _mm512_reduce_add_ps(total.acc[r]);
  }
}

template <class Format>
void dot_any(const DotJob& job) {
  if (job.n_rows == 1) return dot_rows<Format, 1>(job);
  if (job.n_rows == 2) return dot_rows<Format, 2>(job);
  return job.n_rows <= 4 ? dot_rows<Format, 4>(job) : dot_rows<Format, 8>(job);
}

template <class Format>
void set_format(DotTable& table, WeightFormat format) {
  const auto i = static_cast<size_t>(format);
  table.dot[i] = &dot_any<Format>;
  table.pack[i] = &pack<Format>;
}

}  // namespace

const DotTable& dot_table_avx512_vnni() {
  static const DotTable table = [] {
    DotTable made = dot_table_avx512();
    made.isa = Isa::kAvx512Vnni;
    made.packed_bytes = &packed_bytes;
    set_format<Q8_0>(made, WeightFormat::kQ8_0);
    set_format<Q4_0>(made, WeightFormat::kQ4_0);
    set_format<Q4_1>(made, WeightFormat::kQ4_1);
    set_format<Q5_0>(made, WeightFormat::kQ5_0);
    set_format<Q5_1>(made, WeightFormat::kQ5_1);
    set_format<Q4_K>(made, WeightFormat::kQ4_K);
    set_format<Q5_K>(made, WeightFormat::kQ5_K);
    set_format<Q6_K>(made, WeightFormat::kQ6_K);
    return made;
  }();
  return table;
}

}  // namespace pointcode

#else

namespace pointcode {
const DotTable& dot_table_avx512_vnni() { return dot_table_avx512(); }
}  // namespace pointcode

#endif
