#include "cpu_linear.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "aligned_array.h"
#include "check.h"

namespace pointcode {
namespace {

constexpr int kRowsAtOnce =
    16;  // weight rows de-quantised together, to stay in the L1 and L2 caches
constexpr int64_t kWorkPerThread =
    1 << 18;  // multiply-adds below which another thread costs more than it gains

const uint8_t* matrix_of(const Weight& weight, int index) {
  CHECK_THAT(weight.data != nullptr && index >= 0 && index < weight.count, "no matrix ", index,
             " of ", weight.count);
  CHECK_THAT(weight.row_bytes >= packed_row_bytes(weight.format, weight.cols), "row_bytes ",
             weight.row_bytes, " is too small for ", weight.cols, " columns");
  return static_cast<const uint8_t*>(weight.data) + index * weight.matrix_bytes;
}

// Calls part(begin, end) on ranges that cover [0, rows), each on its own thread.
template <typename Part>
void share_rows(int rows, int n_threads, const Part& part) {
  std::vector<std::thread> threads;
  const auto bound = [&](int i) {
    return static_cast<int>(static_cast<int64_t>(rows) * i / n_threads);
  };
  for (int i = 1; i < n_threads; ++i)
    threads.emplace_back([&, i] { part(bound(i), bound(i + 1)); });
  part(0, bound(1));
  for (std::thread& thread : threads) thread.join();
}

int useful_threads(int n_threads, int64_t work) {
  return static_cast<int>(std::clamp<int64_t>(work / kWorkPerThread, 1, std::max(n_threads, 1)));
}

}  // namespace

void dequantize_matrix(const Weight& weight, int index, const DotTable& kernels, int n_threads,
                       float* out) {
  const uint8_t* matrix = matrix_of(weight, index);
  const auto decode = kernels.dequantize[static_cast<int>(weight.format)];
  const int threads = useful_threads(n_threads, static_cast<int64_t>(weight.rows) * weight.cols);
  share_rows(weight.rows, threads, [&](int begin, int end) {
    for (int64_t i = begin; i < end; ++i)
      decode(matrix + i * weight.row_bytes, weight.cols, out + i * weight.cols);
  });
}

void linear(const Weight& weight, int index, const DotTable& kernels, int n_threads, const float* x,
            int n, float* y) {
  const uint8_t* matrix = matrix_of(weight, index);
  const int64_t cols = weight.cols;
  const bool decode_first = n > kMaxDotRows && weight.format != WeightFormat::kF32;
  const auto decode = kernels.dequantize[static_cast<int>(weight.format)];
  const auto dot = kernels.dot[decode_first ? 0 : static_cast<int>(weight.format)];
  const int threads = useful_threads(n_threads, static_cast<int64_t>(weight.rows) * cols * n);
  const auto pack = kernels.pack[decode_first ? 0 : static_cast<int>(weight.format)];
  const int64_t packed_bytes = pack == nullptr ? 0 : kernels.packed_bytes(weight.cols);
  const AlignedArray<uint8_t> packed(static_cast<size_t>(packed_bytes * n));
  for (int r = 0; r < n && pack != nullptr; ++r)
    pack(x + r * cols, weight.cols, packed.data() + r * packed_bytes);
  share_rows(weight.rows, threads, [&](int begin, int end) {
    std::vector<float> decoded(decode_first ? static_cast<size_t>(kRowsAtOnce * cols) : 0);
    for (int64_t i = begin; i < end; i += kRowsAtOnce) {
      const int rows = std::min(kRowsAtOnce, end - static_cast<int>(i));
      const uint8_t* stored = matrix + i * weight.row_bytes;
      for (int64_t j = 0; j < rows && decode_first; ++j) {
        decode(stored + j * weight.row_bytes, weight.cols, decoded.data() + j * cols);
      }
      const auto* weights =
          decode_first ? reinterpret_cast<const uint8_t*>(decoded.data()) : stored;
      const int64_t row_bytes = decode_first ? cols * 4 : weight.row_bytes;
      for (int64_t r = 0; r < n; r += kMaxDotRows) {
        const int some = std::min(kMaxDotRows, n - static_cast<int>(r));
        dot({weights, row_bytes, rows, weight.cols, some, x + r * cols, cols,
             packed.data() + r * packed_bytes, y + r * weight.rows + i, weight.rows});
      }
    }
  });
}

}  // namespace pointcode
