// One function per area of the Python module. Only bindings*.cc know Python.
#pragma once

#include <pybind11/pybind11.h>

namespace pointcode {

void bind_model(pybind11::module_& m);     // weight formats, Weight, ModelShape
void bind_linear(pybind11::module_& m);    // de-quantising and small products for prefill
void bind_sampling(pybind11::module_& m);  // the sampler alone; needs bind_service's SamplingConfig
void bind_cpu(pybind11::module_& m);       // CpuBackend; needs bind_service's StepBackend
void bind_cuda(pybind11::module_& m);      // HAS_CUDA, MegakernelBackend; needs bind_cpu's StepRow
void bind_logits(pybind11::module_& m);    // LogitsBackend; needs bind_service's StepBackend
void bind_prefill(pybind11::module_& m);   // packed_products, where there is CUDA

}  // namespace pointcode
