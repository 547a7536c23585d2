// Python bindings of the prefill products. Without CUDA there are none.
#include "bindings.h"

#if POINTCODE_CUDA
#include "check.h"
#include "prefill_attention.h"
#include "prefill_gemm.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace pointcode {
namespace {

template <typename T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT: Python passes addresses
}

void packed_products(uintptr_t weights, uintptr_t x, uintptr_t begins, uintptr_t ends,
                     uintptr_t out, int32_t n_banks, int32_t rows, int32_t k, int32_t k_tiles,
                     int32_t pitch, bool gated, int cluster, int n_sms, uintptr_t stream) {
  const prefill::Products products{at<const uint8_t>(weights),
                                   at<const uint8_t>(x),
                                   at<const int32_t>(begins),
                                   at<const int32_t>(ends),
                                   at<uint8_t>(out),
                                   n_banks,
                                   rows,
                                   k,
                                   k_tiles,
                                   pitch,
                                   gated};
  const cudaError_t error =
      prefill::launch_products(products, cluster, n_sms, reinterpret_cast<cudaStream_t>(stream));
  CHECK_THAT(error == cudaSuccess, "products of ", n_banks, " matrices of ", rows, " x ", k, ": ",
             cudaGetErrorString(error));
}

void gather_panels(uintptr_t x, uintptr_t source, uintptr_t panels, int32_t n_tokens, int32_t k,
                   int32_t pitch, uintptr_t stream) {
  const prefill::Gather gather{at<const __nv_bfloat16>(x),
                               at<const int32_t>(source),
                               at<uint8_t>(panels),
                               n_tokens,
                               k,
                               pitch};
  const cudaError_t error = prefill::launch_gather(gather, reinterpret_cast<cudaStream_t>(stream));
  CHECK_THAT(error == cudaSuccess, "rows of ", k, " to panels: ", cudaGetErrorString(error));
}

void prefill_attention(uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t out, int32_t n_queries,
                       int32_t n_keys, int32_t heads, int32_t groups, int32_t window, float scale,
                       int n_sms, uintptr_t stream) {
  const prefill::Attention attention{at<const __nv_bfloat16>(q),
                                     at<const __nv_bfloat16>(k),
                                     at<const __nv_bfloat16>(v),
                                     at<__nv_bfloat16>(out),
                                     n_queries,
                                     n_keys,
                                     heads,
                                     groups,
                                     window,
                                     scale};
  const cudaError_t error =
      prefill::launch_attention(attention, n_sms, reinterpret_cast<cudaStream_t>(stream));
  CHECK_THAT(error == cudaSuccess, "attention of ", n_queries, " queries over ", n_keys,
             " keys: ", cudaGetErrorString(error));
}

}  // namespace

void bind_prefill(py::module_& m) {
  m.def("packed_products", &packed_products, "weights"_a, "x"_a, "begins"_a, "ends"_a, "out"_a,
        "n_banks"_a, "rows"_a, "k"_a, "k_tiles"_a, "pitch"_a, "gated"_a, "cluster"_a, "n_sms"_a,
        "stream"_a);
  m.def("gather_panels", &gather_panels, "x"_a, "source"_a, "panels"_a, "n_tokens"_a, "k"_a,
        "pitch"_a, "stream"_a);
  m.def("prefill_attention", &prefill_attention, "q"_a, "k"_a, "v"_a, "out"_a, "n_queries"_a,
        "n_keys"_a, "heads"_a, "groups"_a, "window"_a, "scale"_a, "n_sms"_a, "stream"_a);
}

}  // namespace pointcode
#else

namespace pointcode {

void bind_prefill(pybind11::module_& /*m*/) {}

}  // namespace pointcode
#endif
