// The kernels of a DotTable over vector operations V; included once per instruction set
// (cpu_dot_{portable,avx2,avx512}.cc).
#pragma once

#include "cpu_dot.h"
#include "cpu_dot_formats.h"

namespace pointcode {
namespace dot {

// Multiplies decoded weights with R activation rows. Two accumulators per row whatever R is: equal
// bits for every R.
template <class V, int R>
struct DotSink {
  using F = typename V::F;
  const float* const* x;
  F acc[R][2];

  explicit DotSink(const float* const* rows) : x(rows) {
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = V::set1(0.f);
  }
  template <int parity>
  inline __attribute__((always_inline)) void put(int k, F w) {
    for (int r = 0; r < R; ++r) acc[r][parity] = V::fma(w, V::load(x[r] + k), acc[r][parity]);
  }
  void put_some(int k, F w, int n) {
    for (int r = 0; r < R; ++r) acc[r][0] = V::fma(w, V::load_some(x[r] + k, n), acc[r][0]);
  }
  float result(int r) const { return V::sum(V::add(acc[r][0], acc[r][1])); }
};

template <class V>
struct StoreSink {
  float* out;
  template <int parity>
  void put(int k, typename V::F w) {
    V::store(out + k, w);
  }
  void put_some(int k, typename V::F w, int n) { V::store_some(out + k, w, n); }
};

template <class Format, class Sink>
inline __attribute__((always_inline)) void decode_row(const uint8_t* row, int cols, Sink& sink) {
  int k = 0;
  for (; k + Format::kBlock <= cols; k += Format::kBlock, row += Format::kBytes)
    Format::block(row, k, sink);
  if constexpr (requires { Format::tail(row, k, 0, sink); }) {
    if (k < cols) Format::tail(row, k, cols - k, sink);
  }
}

template <class V, class Format, int R>
void dot_rows(const DotJob& job) {
  const float* x[R];
  for (int r = 0; r < R; ++r) x[r] = job.x + (r < job.n_rows ? r : 0) * job.x_stride;
  for (int i = 0; i < job.n_weights; ++i) {
    DotSink<V, R> sink(x);
    decode_row<Format>(job.weights + i * job.row_bytes, job.cols, sink);
    for (int r = 0; r < R && r < job.n_rows; ++r) job.y[r * job.y_stride + i] = sink.result(r);
  }
}

// 3 rows run as 4, 5 to 7 as 8; the spare ones repeat row 0 and are not written.
template <class V, class Format>
void dot_any(const DotJob& job) {
  if (job.n_rows == 1) return dot_rows<V, Format, 1>(job);
  if (job.n_rows == 2) return dot_rows<V, Format, 2>(job);
  return job.n_rows <= 4 ? dot_rows<V, Format, 4>(job) : dot_rows<V, Format, 8>(job);
}

template <class V, class Format>
void dequantize_row(const uint8_t* row, int32_t cols, float* out) {
  StoreSink<V> sink{out};
  decode_row<Format>(row, cols, sink);
}

template <class V, auto Load, int Bytes, int R>
void weighted_sum_rows(const WeightedSumJob& job) {
  for (int c = 0; c < job.cols; c += 16) {
    typename V::F acc[R];
    for (int r = 0; r < R; ++r)
      acc[r] = V::load(job.out + (r < job.n_rows ? r : 0) * job.out_stride + c);
    for (int t = 0; t < job.n_terms; ++t) {
      const auto m = Load(job.matrix + t * job.row_bytes + c * Bytes);
      for (int r = 0; r < R; ++r) {
        acc[r] = V::fma(V::set1(job.p[(r < job.n_rows ? r : 0) * job.p_stride + t]), m, acc[r]);
      }
    }
    for (int r = 0; r < R && r < job.n_rows; ++r)
      V::store(job.out + r * job.out_stride + c, acc[r]);
  }
}

template <class V, auto Load, int Bytes>
void weighted_sum_any(const WeightedSumJob& job) {
  if (job.n_rows == 1) return weighted_sum_rows<V, Load, Bytes, 1>(job);
  if (job.n_rows == 2) return weighted_sum_rows<V, Load, Bytes, 2>(job);
  return job.n_rows <= 4 ? weighted_sum_rows<V, Load, Bytes, 4>(job)
                         : weighted_sum_rows<V, Load, Bytes, 8>(job);
}

template <class V>
float exp_shifted(float* values, int32_t n, float shift) {
  auto total = V::set1(0.f);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto e = V::exp(V::sub(V::load(values + i), V::set1(shift)));
    V::store(values + i, e);
    total = V::add(total, e);
  }
  if (i < n) {
    float some[16];
    V::store(some, V::exp(V::sub(V::load_some(values + i, n - i), V::set1(shift))));
    std::memcpy(values + i, some, static_cast<size_t>(n - i) * sizeof(float));
    total = V::add(total, V::load_some(some, n - i));
  }
  return V::sum(total);
}

template <class V>
typename V::F silu_mul_16(typename V::F gate, typename V::F up, float factor) {
  const auto one = V::set1(1.f);
  const auto sigmoid = V::div(one, V::add(one, V::exp(V::sub(V::set1(0.f), gate))));
  return V::mul(V::mul(V::mul(gate, sigmoid), up), V::set1(factor));
}

template <class V>
void silu_mul(const float* gate, const float* up, int32_t n, float factor, float* out) {
  int i = 0;
  for (; i + 16 <= n; i += 16)
    V::store(out + i, silu_mul_16<V>(V::load(gate + i), V::load(up + i), factor));
  if (i < n)
    V::store_some(
        out + i, silu_mul_16<V>(V::load_some(gate + i, n - i), V::load_some(up + i, n - i), factor),
        n - i);
}

template <class V>
DotTable make_table(Isa isa) {
  DotTable table;
  table.isa = isa;
  const auto set = [&table]<class Format>(WeightFormat format) {
    table.dot[static_cast<int>(format)] = &dot_any<V, Format>;
    table.dequantize[static_cast<int>(format)] = &dequantize_row<V, Format>;
  };
  set.template operator()<F32<V>>(WeightFormat::kF32);
  set.template operator()<F16<V>>(WeightFormat::kF16);
  set.template operator()<Bf16<V>>(WeightFormat::kBf16);
  set.template operator()<Q8_0<V>>(WeightFormat::kQ8_0);
  set.template operator()<Q4_0<V>>(WeightFormat::kQ4_0);
  set.template operator()<Q4_1<V>>(WeightFormat::kQ4_1);
  set.template operator()<Q5_0<V>>(WeightFormat::kQ5_0);
  set.template operator()<Q5_1<V>>(WeightFormat::kQ5_1);
  set.template operator()<Q4_K<V>>(WeightFormat::kQ4_K);
  set.template operator()<Q5_K<V>>(WeightFormat::kQ5_K);
  set.template operator()<Q6_K<V>>(WeightFormat::kQ6_K);
  table.weighted_sum[0] = &weighted_sum_any<V, &V::f32, 4>;
  table.weighted_sum[1] = &weighted_sum_any<V, &V::f16, 2>;
  table.weighted_sum[2] = &weighted_sum_any<V, &V::bf16, 2>;
  table.exp_shifted = &exp_shifted<V>;
  table.silu_mul = &silu_mul<V>;
  return table;
}

}  // namespace dot
}  // namespace pointcode
