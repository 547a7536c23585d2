// Matrix-vector kernels of the CPU backend, one table of functions per instruction set.
//
// Weights are read in their file layout: a block is decoded to fp32 in registers and multiplied
// with fp32 activations (or, with VNNI, its codes are multiplied with 24-bit fixed-point ones), so
// results differ from a de-quantised fp32 product by fp32 rounding only. The order of summation is
// the same for every number of activation rows: a row's result has the same bits whatever else is
// in the batch.
#pragma once

#include <cstdint>
#include <string>

#include "model_shape.h"

namespace pointcode {

constexpr int kNumFormats = 11;
constexpr int kMaxDotRows = 8;

enum class Isa : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Vnni = 3 };

// y[r * y_stride + i] = sum over k of W[i][k] * x[r * x_stride + k]; i < n_weights, r < n_rows <=
// kMaxDotRows.
struct DotJob {
  const uint8_t* weights = nullptr;  // first of n_weights consecutive matrix rows
  int64_t row_bytes = 0;
  int32_t n_weights = 0, cols = 0, n_rows = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  const uint8_t* packed =
      nullptr;  // where the table packs activations: n_rows of packed_bytes(cols), 64-byte aligned
  float* y = nullptr;
  int64_t y_stride = 0;
};

// out[r * out_stride + c] += sum over t of p[r * p_stride + t] * M[t][c]; M is F32, F16 or BF16
// with `cols` % 16 == 0.
struct WeightedSumJob {
  const uint8_t* matrix = nullptr;  // first of n_terms consecutive rows
  int64_t row_bytes = 0;
  int32_t n_terms = 0, cols = 0, n_rows = 0;
  const float* p = nullptr;
  int64_t p_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

struct DotTable {
  Isa isa = Isa::kPortable;
  void (*dot[kNumFormats])(const DotJob&) = {};
  // Formats with a `pack` function want the activations in its form: packed_bytes(cols) a row, a
  // multiple of 64.
  void (*pack[kNumFormats])(const float* x, int32_t cols, uint8_t* out) = {};
  int64_t (*packed_bytes)(int32_t cols) = nullptr;
  void (*weighted_sum[3])(const WeightedSumJob&) = {};  // F32, F16, BF16
  void (*dequantize[kNumFormats])(const uint8_t* row, int32_t cols, float* out) = {};
  // values[i] = exp(values[i] - shift); returns their sum.
  float (*exp_shifted)(float* values, int32_t n, float shift) = nullptr;
  // out[i] = silu(gate[i]) * up[i] * factor.
  void (*silu_mul)(const float* gate, const float* up, int32_t n, float factor,
                   float* out) = nullptr;
};

struct FormatInfo {
  int32_t block = 1, block_bytes = 4;
  const char* name = "";
};
const FormatInfo& format_info(WeightFormat format);

// Number of bytes of a row; throws when `cols` is not a multiple of the format's block.
int64_t packed_row_bytes(WeightFormat format, int32_t cols);

// The best instruction set that this machine has.
Isa best_isa();
// Throws std::runtime_error when the machine cannot run `isa`.
const DotTable& dot_table(Isa isa);

const DotTable& dot_table_portable();
const DotTable& dot_table_avx2();
const DotTable& dot_table_avx512();
const DotTable& dot_table_avx512_vnni();

}  // namespace pointcode
