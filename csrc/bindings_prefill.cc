// Python bindings of the prefill products. Without CUDA there are none.
#include "bindings.h"

#if POINTCODE_CUDA
#include "check.h"
#include "prefill_gemm.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace pointcode {
namespace {

template <typename T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT: Python passes addresses
}

void packed_products(uintptr_t weights, uintptr_t x, uintptr_t source, uintptr_t scale,
                     uintptr_t ends, uintptr_t out, int32_t n_banks, int32_t rows, int32_t k,
                     int32_t k_tiles, bool gated, int n_sms, uintptr_t stream) {
  const prefill::Products products{at<const uint8_t>(weights),
                                   at<const __nv_bfloat16>(x),
                                   at<const int32_t>(source),
                                   at<const float>(scale),
                                   at<const int32_t>(ends),
                                   at<__nv_bfloat16>(out),
                                   n_banks,
                                   rows,
                                   k,
                                   k_tiles,
                                   gated};
  const cudaError_t error =
      prefill::launch_products(products, n_sms, reinterpret_cast<cudaStream_t>(stream));
  CHECK_THAT(error == cudaSuccess, "products of ", n_banks, " matrices of ", rows, " x ", k, ": ",
             cudaGetErrorString(error));
}

}  // namespace

void bind_prefill(py::module_& m) {
  m.def("packed_products", &packed_products, "weights"_a, "x"_a, "source"_a, "scale"_a, "ends"_a,
        "out"_a, "n_banks"_a, "rows"_a, "k"_a, "k_tiles"_a, "gated"_a, "n_sms"_a, "stream"_a);
}

}  // namespace pointcode
#else

namespace pointcode {

void bind_prefill(pybind11::module_& /*m*/) {}

}  // namespace pointcode
#endif
