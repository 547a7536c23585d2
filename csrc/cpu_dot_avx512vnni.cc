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
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu_dot.h"

#if defined(__AVX512VNNI__)
#include "cpu_dot_vnni_formats.h"

namespace pointcode {
namespace {

struct XChunk {
  int8_t digit[3][64];     // most significant first
  float scale[16];         // of each lane's 4 values
  int32_t correction[16];  // (zero point of the weight format) * sum of the lane's 4 q, negated
};
static_assert(sizeof(XChunk) == 320);

// The hardware prefetcher stops at 4 KB pages; fetching this far ahead gained 10-15 % on weights in
// memory.
constexpr int kPrefetchBytes = 1024;

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

// W consecutive weight rows, read side by side so that a load of the activations serves all of
// them.
template <int W>
struct WeightRows {
  const uint8_t* row[W];

  WeightRows(const DotJob& job, int i) {
    for (int w = 0; w < W; ++w) row[w] = job.weights + (i + w) * job.row_bytes;
  }
};

// The packed activations of R rows and the accumulators of R x W results. Every result has one
// accumulator and takes its chunks in order, whatever R and W are.
template <class Format, int R, int W>
struct Accumulator {
  const XChunk* chunks[R];
  const float* sums[R];
  __m512 acc[R][W];

  explicit Accumulator(const DotJob& job) {
    for (int r = 0; r < R; ++r) {
      chunks[r] = reinterpret_cast<const XChunk*>(job.packed + r * packed_bytes(job.cols));
      sums[r] = reinterpret_cast<const float*>(chunks[r] + n_chunks(job.cols));
      for (int w = 0; w < W; ++w) acc[r][w] = _mm512_setzero_ps();
    }
  }
  inline __attribute__((always_inline)) void add_chunk(const __m512i* codes, const __m512* scales,
                                                       int c) {
    for (int r = 0; r < R; ++r) {
      const XChunk& x = chunks[r][c];
      for (int w = 0; w < W; ++w) {
        __m512i sum =
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[w], _mm512_load_si512(x.digit[0]));
        sum =
            _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), codes[w], _mm512_load_si512(x.digit[1]));
        sum = _mm512_slli_epi32(sum, 8);
        if constexpr (Format::kZeroPoint != 0)
          sum = _mm512_add_epi32(sum, _mm512_load_si512(x.correction));
        sum = _mm512_dpbusd_epi32(sum, codes[w], _mm512_load_si512(x.digit[2]));
        acc[r][w] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum),
                                    _mm512_mul_ps(scales[w], _mm512_load_ps(x.scale)), acc[r][w]);
      }
    }
  }
  inline __attribute__((always_inline)) void add_minima(__m512 minima, int w, int first) {
    for (int r = 0; r < R; ++r)
      acc[r][w] = _mm512_fmadd_ps(minima, _mm512_load_ps(sums[r] + first), acc[r][w]);
  }
};

template <class Format, int R, int W>
inline __attribute__((always_inline)) void dot_small(WeightRows<W> rows, int n_blocks,
                                                     Accumulator<Format, R, W>& total) {
  __m512i codes[W];
  __m512 block_scales[W], scales[W];
  for (int g = 0; g < n_blocks; g += 16) {
    const int n = n_blocks - g < 16 ? n_blocks - g : 16;
    for (int w = 0; w < W; ++w) {
      const __m512i heads = block_heads<Format::kBytes>(rows.row[w], n);
      block_scales[w] = low_halves(heads);
      if constexpr (Format::kMinimum) total.add_minima(high_halves(heads), w, g);
    }
    for (int c = 0; 2 * c < n; ++c) {
      // an odd last block stands in for its partner, whose activations are zeros
      const int64_t partner = 2 * c + 1 < n ? Format::kBytes : 0;
      for (int w = 0; w < W; ++w) {
        const uint8_t*& block = rows.row[w];
        _mm_prefetch(reinterpret_cast<const char*>(block + kPrefetchBytes), _MM_HINT_T0);
        codes[w] = Format::codes(block, block + partner);
        scales[w] = Format::lane_scales(block_scales[w], c);
        block += 2 * Format::kBytes;
      }
      total.add_chunk(codes, scales, g / 2 + c);
    }
  }
}

template <class Format, int R, int W>
inline __attribute__((always_inline)) void dot_large(WeightRows<W> rows, int n_blocks,
                                                     Accumulator<Format, R, W>& total) {
  __m512i codes[W];
  __m512 heads[W], scales[W];
  for (int b = 0; b < n_blocks; ++b) {
    for (int w = 0; w < W; ++w) {
      heads[w] = Format::head(rows.row[w]);
      if constexpr (Format::kMinimum) total.add_minima(heads[w], w, 16 * b);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      for (int w = 0; w < W; ++w) {
        codes[w] = Format::codes(rows.row[w], c);
        scales[w] = Format::lane_scales(heads[w], c);
      }
      total.add_chunk(codes, scales, 4 * b + c);
    }
    for (int w = 0; w < W; ++w) rows.row[w] += Format::kBytes;
  }
}

template <class Format, int R, int W>
void dot_some(const DotJob& job, int i) {
  Accumulator<Format, R, W> total(job);
  if constexpr (kIsSmall<Format>) {
    dot_small<Format, R, W>(WeightRows<W>(job, i), job.cols / kBlockValues, total);
  } else {
    dot_large<Format, R, W>(WeightRows<W>(job, i), job.cols / 256, total);
  }
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w)
      job.y[r * job.y_stride + i + w] = _mm512_reduce_add_ps(total.acc[r][w]);
  }
}

template <class Format, int R>
void dot_rows(const DotJob& job) {
  constexpr int W = R <= 4 ? 2 : 1;  // with 8 rows a second weight row would spill registers
  int i = 0;
  for (; i + W <= job.n_weights; i += W) dot_some<Format, R, W>(job, i);
  for (; i < job.n_weights; ++i) dot_some<Format, R, 1>(job, i);
}

template <class Format>
void dot_any(const DotJob& job) {
  constexpr auto kByRows = []<size_t... r>(std::index_sequence<r...>) {
    return std::array<void (*)(const DotJob&), sizeof...(r)>{
        &dot_rows<Format, static_cast<int>(r) + 1>...};
  }(std::make_index_sequence<kMaxDotRows>());
  kByRows[static_cast<size_t>(job.n_rows) - 1](job);
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
