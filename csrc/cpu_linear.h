// Whole-matrix work outside decode steps: de-quantising a weight, and products with a few dozen
// rows for prefill.
#pragma once

#include "cpu_dot.h"

namespace pointcode {

// out (rows, cols) fp32 = matrix `index` of the bank; `n_threads` threads share the rows.
void dequantize_matrix(const Weight& weight, int index, const DotTable& kernels, int n_threads,
                       float* out);

// y (n, rows) = x (n, cols) times the transposed matrix `index` of the bank. Any n; meant for n
// <= 64.
void linear(const Weight& weight, int index, const DotTable& kernels, int n_threads, const float* x,
            int n, float* y);

}  // namespace pointcode
