// Python bindings of the megakernel backend. Without CUDA only HAS_CUDA is there.
#include "bindings.h"

#if POINTCODE_CUDA
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings_rows.h"
#include "check.h"
#include "megakernel_backend.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace pointcode {
namespace {

using TaskArray = py::array_t<TaskDescriptor, py::array::c_style>;
using Values = py::array_t<float, py::array::c_style | py::array::forcecast>;
using OffsetArray = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using StepArray = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
// (tasks, offsets, attention splits, claim queues, counters or 0, wave names) as engine/scheduler.py
// makes them
using ScheduleTuple =
    std::tuple<TaskArray, OffsetArray, int32_t, int32_t, int32_t, std::vector<std::string>>;
// device addresses: qkv, o, router, upgate, down, norm, K pages, V pages
using LayerAddresses = std::array<uintptr_t, 8>;

template <typename T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT: Python passes addresses
}

mk::Layer make_layer(const LayerAddresses& a, const LayerShape& shape) {
  const int32_t flags = (shape.rope ? mk::kLayerRope : 0) |
                        (shape.sliding ? mk::kLayerSliding : 0) | (shape.moe ? mk::kLayerMoe : 0);
  return {at<const uint8_t>(a[0]), at<const uint8_t>(a[1]), at<const uint8_t>(a[2]),
          at<const uint8_t>(a[3]), at<const uint8_t>(a[4]), at<const float>(a[5]),
          at<uint8_t>(a[6]),       at<uint8_t>(a[7]),       flags,
          shape.intermediate};
}

std::unique_ptr<MegakernelBackend> make_backend(
    const ModelShape& model, const std::vector<LayerAddresses>& layers, uintptr_t final_norm,
    uintptr_t lm_head, uintptr_t embed, const std::vector<ScheduleTuple>& schedules,
    int32_t max_pages, int32_t wait_limit_ms, uint32_t spin_limit, const py::object& /*owners*/) {
  CHECK_THAT(layers.size() == model.layers.size(), "weights of ", layers.size(),
             " layers came for ", model.layers.size());
  MegakernelConfig config;
  for (size_t i = 0; i < layers.size(); ++i)
    config.layers.push_back(make_layer(layers[i], model.layers[i]));
  config.final_norm = at<const float>(final_norm);
  config.lm_head = at<const uint8_t>(lm_head);
  config.embed = at<const uint8_t>(embed);
  for (const auto& [tasks, offsets, n_splits, n_queues, n_counters, names] : schedules) {
    config.schedules.push_back({{tasks.data(), tasks.data() + tasks.size()},
                                {offsets.data(), offsets.data() + offsets.size()},
                                n_splits,
                                n_queues,
                                n_counters,
                                names});
  }
  config.max_pages = max_pages, config.wait_limit_ms = wait_limit_ms,
  config.spin_limit = spin_limit;
  return std::make_unique<MegakernelBackend>(model, std::move(config));
}

// `n_steps` steps, each fed with the tokens of the one before: (seconds, (n_steps, rows) tokens). With
// `ahead` each is launched before the tokens of the one before have come.
py::tuple py_run(MegakernelBackend& backend, const std::vector<StepRow*>& rows, int n_steps,
                 bool ahead) {
  std::vector<BatchRow> views = views_of(rows);
  std::vector<RowResult> results;
  py::array_t<int32_t> tokens(
      {static_cast<py::ssize_t>(n_steps), static_cast<py::ssize_t>(rows.size())});
  int32_t* out = tokens.mutable_data();
  double seconds = 0;
  int bad = -1;
  {
    const py::gil_scoped_release unlocked;
    backend.set_batch(views);
    const auto begin = std::chrono::steady_clock::now();
    for (int s = 0; s < n_steps; ++s) {
      if (s == 0 || !ahead) backend.launch(views);
      for (BatchRow& row : views) row.token = kTokenOfLastStep, ++row.position;
      if (ahead && s + 1 < n_steps) backend.launch(views);
      backend.collect(results);
      for (size_t r = 0; r < views.size(); ++r) {
        if (results[r].status != RowStatus::kOk) bad = static_cast<int>(r);
        *out++ = views[r].token = results[r].token;
      }
      if (bad < 0) continue;
      if (ahead && s + 1 < n_steps) backend.collect(results);
      fail(join_text("row ", bad, " has a NaN among its logits at position ",
                     views[static_cast<size_t>(bad)].position - 1));
    }
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  for (size_t r = 0; r < rows.size(); ++r)
    rows[r]->token = views[r].token, rows[r]->position = views[r].position;
  return py::make_tuple(seconds, tokens);
}

float py_time_kernels(MegakernelBackend& backend, const std::vector<StepRow*>& rows,
                      const StepArray& tokens, const StepArray& positions) {
  for (const StepArray* steps : {&tokens, &positions}) {
    CHECK_THAT(steps->ndim() == 2 && steps->shape(1) == static_cast<py::ssize_t>(rows.size()),
               "tokens and positions must be (steps, rows)");
  }
  const std::span<const int32_t> fed(tokens.data(), static_cast<size_t>(tokens.size()));
  const std::span<const int32_t> places(positions.data(), static_cast<size_t>(positions.size()));
  std::vector<BatchRow> views = views_of(rows);
  const py::gil_scoped_release unlocked;
  return backend.time_kernels(std::move(views), fed, places);
}

py::array_t<float> py_logits(const MegakernelBackend& backend, int row) {
  const std::vector<float> values = backend.logits(row);
  return py::array_t<float>(static_cast<py::ssize_t>(values.size()), values.data());
}

// Samples given logits (rows, vocab) on the GPU alone, to compare with the CPU sampler. Also returns
// the positions that the GPU holds afterwards and the microseconds of one launch in a row of them.
py::tuple py_gpu_sample(const Values& logits, const std::vector<StepRow*>& rows, int n_timed) {
  const auto n = rows.size();
  CHECK_THAT(logits.ndim() == 2 && logits.shape(0) == static_cast<py::ssize_t>(n) && n <= kMaxRows,
             "logits must be (rows, vocab)");
  const auto vocab = static_cast<int32_t>(logits.shape(1));
  const std::vector<BatchRow> views = views_of(rows);
  const Stream stream;
  const DeviceBuffer<float> values(static_cast<size_t>(kMaxRows) * vocab);
  const DeviceBuffer<int32_t> fed(2 * kMaxRows);
  const DeviceBuffer<uint32_t> abort(1);
  std::vector<int32_t> positions(kMaxRows);
  for (size_t r = 0; r < n; ++r) positions[r] = views[r].position;
  const auto bytes = static_cast<size_t>(logits.size()) * 4;
  check_cuda(cudaMemcpy(values.data(), logits.data(), bytes, cudaMemcpyHostToDevice), "uploading");
  check_cuda(
      cudaMemcpy(fed.data() + kMaxRows, positions.data(), kMaxRows * 4, cudaMemcpyHostToDevice),
      "uploading");
  GpuSampler sampler(vocab, values.data(), fed.data(), fed.data() + kMaxRows, abort.data(),
                     stream.get());
  std::array<int32_t, kMaxRows> sequences{};
  std::iota(sequences.begin(), sequences.end(), 0);
  sampler.set_batch(views, sequences);
  sampler.prepare(views);
  check_cuda(sampler.launch(), "sampling");
  check_cuda(cudaStreamSynchronize(stream.get()), "sampling");
  const uint32_t stamp = sampler.stamp();
  std::vector<RowResult> results(n);
  for (size_t r = 0; r < n; ++r) {
    const GpuSampler::Answer answer = sampler.poll(stamp, static_cast<int>(r));
    CHECK_THAT(answer.arrived, "row ", r, " has no answer");
    results[r].token = answer.token;
    results[r].status = answer.status == gpu::SampleStatus::kOk ? RowStatus::kOk : RowStatus::kNan;
    sampler.read_logprobs(stamp, static_cast<int>(r), results[r]);
  }
  check_cuda(
      cudaMemcpy(positions.data(), fed.data() + kMaxRows, kMaxRows * 4, cudaMemcpyDeviceToHost),
      "reading positions");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < n_timed; ++i) check_cuda(sampler.launch(), "sampling");
  check_cuda(cudaStreamSynchronize(stream.get()), "sampling");
  const double us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  return py::make_tuple(results, positions, n_timed > 0 ? us / n_timed : 0.0);
}

}  // namespace

void bind_cuda(py::module_& m) {
  m.attr("HAS_CUDA") = true;
  m.def("gpu_sample", &py_gpu_sample, "logits"_a, "rows"_a, "n_timed"_a = 0);
  py::class_<MegakernelBackend, StepBackend>(m, "MegakernelBackend")
      .def(py::init(&make_backend), py::keep_alive<1, 11>(), "model"_a, "layers"_a, "final_norm"_a,
           "lm_head"_a, "embed"_a, "schedules"_a, "max_pages"_a, "wait_limit_ms"_a = 10000,
           "spin_limit"_a = uint32_t{300000}, "owners"_a = py::none())
      .def_property_readonly("n_sms", &MegakernelBackend::n_sms)
      .def("step", &py_step, "rows"_a)
      .def("run", &py_run, "rows"_a, "n_steps"_a, "ahead"_a = true)
      .def("time_kernels", &py_time_kernels, "rows"_a, "tokens"_a, "positions"_a)
      .def("logits", &py_logits, "row"_a)
      .def("router_logits",
           [](const MegakernelBackend& b) {
             const std::vector<float> values = b.router_logits();
             return py::array_t<float>({static_cast<py::ssize_t>(kMaxRows),
                                        static_cast<py::ssize_t>(values.size() / kMaxRows)},
                                       values.data());
           })
      .def(
          "set_trace",
          [](MegakernelBackend& b, uintptr_t trace, int32_t slots) {
            b.set_trace(at<uint64_t>(trace), slots);
          },
          "address"_a, "slots"_a)
      .def("set_in_flight", &MegakernelBackend::set_in_flight, "n_bytes"_a)
      .def("set_step", &MegakernelBackend::set_step, "step"_a)
      .def("set_spin_limit", &MegakernelBackend::set_spin_limit, "turns"_a);
}

}  // namespace pointcode
#else

namespace pointcode {

void bind_cuda(pybind11::module_& m) { m.attr("HAS_CUDA") = false; }

}  // namespace pointcode
#endif
