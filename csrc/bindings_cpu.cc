// Python bindings of the model description, the matrix helpers, the sampler and the CPU backend.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "bindings_rows.h"
#include "check.h"
#include "cpu_backend.h"
#include "cpu_linear.h"
#include "model_shape.h"
#include "sampling.h"
#include "task.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace pointcode {
namespace {

// ---------------------------------------------------------------------------------------------------
// model
void bind_weight_enums(py::module_& m) {
  py::native_enum<WeightFormat>(m, "WeightFormat", "enum.IntEnum",
                                "Storage of a weight; Q formats are GGUF's.")
      .value("F32", WeightFormat::kF32)
      .value("F16", WeightFormat::kF16)
      .value("BF16", WeightFormat::kBf16)
      .value("Q8_0", WeightFormat::kQ8_0)
      .value("Q4_0", WeightFormat::kQ4_0)
      .value("Q4_1", WeightFormat::kQ4_1)
      .value("Q5_0", WeightFormat::kQ5_0)
      .value("Q5_1", WeightFormat::kQ5_1)
      .value("Q4_K", WeightFormat::kQ4_K)
      .value("Q5_K", WeightFormat::kQ5_K)
      .value("Q6_K", WeightFormat::kQ6_K)
      .finalize();
  py::native_enum<WeightKind>(m, "WeightKind", "enum.IntEnum",
                              "What a weight is for; the last three are per model.")
      .value("NORM_ATTN", WeightKind::kNormAttn)
      .value("Q", WeightKind::kQ)
      .value("K", WeightKind::kK)
      .value("V", WeightKind::kV)
      .value("Q_BIAS", WeightKind::kQBias)
      .value("K_BIAS", WeightKind::kKBias)
      .value("V_BIAS", WeightKind::kVBias)
      .value("O", WeightKind::kO)
      .value("NORM_FFN", WeightKind::kNormFfn)
      .value("GATE", WeightKind::kGate)
      .value("UP", WeightKind::kUp)
      .value("DOWN", WeightKind::kDown)
      .value("ROUTER", WeightKind::kRouter)
      .value("EXPERT_GATE", WeightKind::kExpertGate)
      .value("EXPERT_UP", WeightKind::kExpertUp)
      .value("EXPERT_DOWN", WeightKind::kExpertDown)
      .value("FINAL_NORM", WeightKind::kFinalNorm)
      .value("LM_HEAD", WeightKind::kLmHead)
      .value("EMBED", WeightKind::kEmbed)
      .finalize();
}

// Strides left at 0 are those of densely packed rows and matrices.
Weight make_weight(WeightFormat format, uintptr_t address, int32_t rows, int32_t cols,
                   int32_t count, int64_t row_bytes, int64_t matrix_bytes) {
  CHECK_THAT(rows > 0 && count > 0, "a weight has ", count, " x ", rows, " rows");
  const int64_t packed = packed_row_bytes(format, cols);
  Weight weight;
  weight.format = format;
  weight.data = reinterpret_cast<const void*>(address);  // NOLINT: Python passes addresses
  weight.rows = rows;
  weight.cols = cols;
  weight.count = count;
  weight.row_bytes = row_bytes > 0 ? row_bytes : packed;
  weight.matrix_bytes = matrix_bytes > 0 ? matrix_bytes : weight.row_bytes * rows;
  return weight;
}

void set_weight(ModelShape& model, int32_t layer, WeightKind kind, const Weight& weight) {
  CHECK_THAT(layer >= 0 && layer <= model.n_layers, "no layer ", layer, " in a model of ",
             model.n_layers);
  model.weights.resize(static_cast<size_t>(model.n_layers + 1) * kNumWeightKinds);
  model.weights[static_cast<size_t>(layer) * kNumWeightKinds + static_cast<size_t>(kind)] = weight;
}

void bind_parts(py::module_& m) {
  py::class_<Weight>(m, "Weight")
      .def(py::init(&make_weight), "format"_a, "address"_a, "rows"_a, "cols"_a, "count"_a = 1,
           "row_bytes"_a = 0, "matrix_bytes"_a = 0)
      .def_readonly("format", &Weight::format)
      .def_property_readonly("address",
                             [](const Weight& w) { return reinterpret_cast<uintptr_t>(w.data); })
      .def_readonly("rows", &Weight::rows)
      .def_readonly("cols", &Weight::cols)
      .def_readonly("count", &Weight::count)
      .def_readonly("row_bytes", &Weight::row_bytes)
      .def_readonly("matrix_bytes", &Weight::matrix_bytes);
  py::class_<LayerShape>(m, "LayerShape")
      .def(py::init([](bool rope, bool sliding, bool moe, int32_t intermediate) {
             return LayerShape{rope, sliding, moe, intermediate};
           }),
           py::kw_only(), "rope"_a, "sliding"_a, "moe"_a, "intermediate"_a)
      .def_readonly("rope", &LayerShape::rope)
      .def_readonly("sliding", &LayerShape::sliding)
      .def_readonly("moe", &LayerShape::moe)
      .def_readonly("intermediate", &LayerShape::intermediate);
}

void bind_shape(py::module_& m) {
  py::class_<ModelShape>(m, "ModelShape")
      .def(py::init<>())
      .def_readwrite("hidden", &ModelShape::hidden)
      .def_readwrite("n_heads", &ModelShape::n_heads)
      .def_readwrite("n_kv_heads", &ModelShape::n_kv_heads)
      .def_readwrite("head_dim", &ModelShape::head_dim)
      .def_readwrite("vocab", &ModelShape::vocab)
      .def_readwrite("n_layers", &ModelShape::n_layers)
      .def_readwrite("n_experts", &ModelShape::n_experts)
      .def_readwrite("top_k", &ModelShape::top_k)
      .def_readwrite("window", &ModelShape::window)
      .def_readwrite("parallel_block", &ModelShape::parallel_block)
      .def_readwrite("rope_interleaved", &ModelShape::rope_interleaved)
      .def_readwrite("layer_norm", &ModelShape::layer_norm)
      .def_readwrite("norm_topk", &ModelShape::norm_topk)
      .def_readwrite("softmax_router", &ModelShape::softmax_router)
      .def_readwrite("eps", &ModelShape::eps)
      .def_readwrite("rope_theta", &ModelShape::rope_theta)
      .def_readwrite("attn_scale", &ModelShape::attn_scale)
      .def_readwrite("logit_scale", &ModelShape::logit_scale)
      .def_readwrite("layers", &ModelShape::layers)
      .def("set_weight", &set_weight, "layer"_a, "kind"_a, "weight"_a)
      .def(
          "weight",
          [](const ModelShape& model, int32_t layer, WeightKind kind) {
            CHECK_THAT(
                layer >= 0 && static_cast<size_t>(layer) * kNumWeightKinds < model.weights.size(),
                "no layer ", layer);
            return model.weight(layer, kind);
          },
          "layer"_a, "kind"_a);
}

}  // namespace

void bind_model(py::module_& m) {
  bind_weight_enums(m);
  bind_parts(m);
  bind_shape(m);
}

namespace {

// ---------------------------------------------------------------------------------------------------
// matrix helpers
using FloatArray = py::array_t<float, py::array::c_style>;

const DotTable& table_or_best(std::optional<Isa> isa) {
  return dot_table(isa.value_or(best_isa()));
}

void py_dequantize(const Weight& weight, FloatArray out, int index, int n_threads,
                   std::optional<Isa> isa) {
  CHECK_THAT(out.size() == static_cast<int64_t>(weight.rows) * weight.cols && out.writeable(),
             "out must be a writeable (", weight.rows, ", ", weight.cols, ") fp32 array");
  float* data = out.mutable_data();
  const py::gil_scoped_release unlocked;
  dequantize_matrix(weight, index, table_or_best(isa), n_threads, data);
}

FloatArray py_linear(const Weight& weight, const FloatArray& x, int index, int n_threads,
                     std::optional<Isa> isa) {
  CHECK_THAT(x.ndim() == 2 && x.shape(1) == weight.cols, "x must be an (n, ", weight.cols,
             ") fp32 array");
  FloatArray y({x.shape(0), static_cast<py::ssize_t>(weight.rows)});
  const float* in = x.data();
  float* out = y.mutable_data();
  const int n = static_cast<int>(x.shape(0));
  const py::gil_scoped_release unlocked;
  linear(weight, index, table_or_best(isa), n_threads, in, n, out);
  return y;
}

}  // namespace

void bind_linear(py::module_& m) {
  py::native_enum<Isa>(m, "Isa", "enum.IntEnum", "Instruction sets of the CPU kernels.")
      .value("PORTABLE", Isa::kPortable)
      .value("AVX2", Isa::kAvx2)
      .value("AVX512", Isa::kAvx512)
      .value("AVX512_VNNI", Isa::kAvx512Vnni)
      .finalize();
  m.def("best_isa", &best_isa);
  m.def("packed_row_bytes", &packed_row_bytes, "format"_a, "cols"_a);
  m.def("dequantize", &py_dequantize, "weight"_a, py::arg("out").noconvert(), "index"_a = 0,
        "n_threads"_a = 1, "isa"_a = py::none());
  m.def("linear", &py_linear, "weight"_a, "x"_a, "index"_a = 0, "n_threads"_a = 1,
        "isa"_a = py::none());
}

namespace {

// ---------------------------------------------------------------------------------------------------
// sampling
RowResult py_sample(const FloatArray& logits, const SamplingConfig& config, int32_t position,
                    std::optional<MaskArray> token_mask, std::vector<int32_t> history) {
  CHECK_THAT(logits.ndim() == 1, "logits must be a (vocab,) fp32 array");
  CHECK_THAT(!token_mask || token_mask->size() * 32 >= logits.size(), "the mask has ",
             token_mask->size() * 32, " bits");
  BatchRow row;
  row.position = position;
  row.sampling = &config;
  row.token_mask = token_mask ? token_mask->data() : nullptr;
  row.history = &history;
  RowResult result;
  Sampler(static_cast<int32_t>(logits.size())).sample(logits.data(), row, result);
  return result;
}

}  // namespace

void bind_sampling(py::module_& m) {
  py::native_enum<RowStatus>(m, "RowStatus", "enum.IntEnum",
                             "Whether a row of a step gave a token.")
      .value("OK", RowStatus::kOk)
      .value("NAN", RowStatus::kNan)
      .finalize();
  py::class_<RowResult>(m, "RowResult")
      .def_readonly("token", &RowResult::token)
      .def_readonly("status", &RowResult::status)
      .def_readonly("logprobs", &RowResult::logprobs);
  m.def("sample", &py_sample, "logits"_a, "config"_a, "position"_a, "token_mask"_a = py::none(),
        "history"_a = std::vector<int32_t>());
  m.def("token_noise", &token_noise, "seed"_a, "position"_a, "token"_a);
}

namespace {

// ---------------------------------------------------------------------------------------------------
// CPU backend
using TaskArray = py::array_t<TaskDescriptor, py::array::c_style>;

// (lists, n_counters, n_queues) as engine/scheduler.py makes them; None where that many rows cannot
// run.
using ScheduleTuple = std::tuple<std::vector<TaskArray>, int32_t, int32_t>;

Schedule make_schedule(const ScheduleTuple& parts) {
  Schedule schedule;
  for (const TaskArray& list : std::get<0>(parts))
    schedule.lists.emplace_back(list.data(), list.data() + list.size());
  schedule.n_counters = std::get<1>(parts);
  schedule.n_queues = std::get<2>(parts);
  return schedule;
}

std::unique_ptr<CpuBackend> make_cpu_backend(
    const ModelShape& model, const std::vector<uintptr_t>& k_pages,
    const std::vector<uintptr_t>& v_pages,
    const std::vector<std::optional<ScheduleTuple>>& schedules, WeightFormat kv_format,
    int32_t wait_limit_ms, uint64_t delay_seed, std::optional<Isa> isa, int32_t max_splits,
    const py::object& /*owners*/) {
  CHECK_THAT(k_pages.size() == v_pages.size(), "K pages of ", k_pages.size(),
             " layers, V pages of ", v_pages.size());
  CpuBackendConfig config;
  for (size_t i = 0; i < k_pages.size(); ++i) {
    config.caches.push_back(
        {reinterpret_cast<uint8_t*>(k_pages[i]), reinterpret_cast<uint8_t*>(v_pages[i])});
  }
  for (const auto& schedule : schedules)
    config.schedules.push_back(schedule ? make_schedule(*schedule) : Schedule());
  config.kv_format = kv_format;
  config.wait_limit_ms = wait_limit_ms;
  config.delay_seed = delay_seed;
  config.isa = isa.value_or(best_isa());
  config.max_splits = max_splits;
  return std::make_unique<CpuBackend>(model, std::move(config));
}

FloatArray py_forward(CpuBackend& backend, const std::vector<StepRow*>& rows) {
  const std::vector<BatchRow> views = views_of(rows);
  {
    const py::gil_scoped_release unlocked;
    backend.run_forward(views);
  }
  FloatArray logits(
      {static_cast<py::ssize_t>(rows.size()), static_cast<py::ssize_t>(backend.model().vocab)});
  std::copy_n(backend.buffers().logits.data(), logits.size(), logits.mutable_data());
  return logits;
}

void py_run_lists(CpuBackend& backend, const std::vector<StepRow*>& rows,
                  const ScheduleTuple& lists) {
  const std::vector<BatchRow> views = views_of(rows);
  const Schedule schedule = make_schedule(lists);
  const py::gil_scoped_release unlocked;
  backend.run_lists(views, schedule);
}

// Per processor an array of stamps, in the order in which it ran the tasks.
std::vector<py::array_t<TaskStamp>> py_stamps(const CpuBackend& backend) {
  std::vector<py::array_t<TaskStamp>> arrays;
  for (const auto& stamps : backend.stamps())
    arrays.emplace_back(static_cast<py::ssize_t>(stamps.size()), stamps.data());
  return arrays;
}

// The named activation buffer as an array over the backend's own memory, rows first.
py::array py_buffer(const py::object& self, const std::string& name) {
  auto& backend = self.cast<CpuBackend&>();
  StepBuffers& b = backend.buffers();
  const ModelShape& m = backend.model();
  if (name == "topk_ids") {
    return py::array_t<int32_t>({kMaxRows, m.top_k}, b.topk_ids.data(), self);
  }
  const std::map<std::string, std::pair<const AlignedArray<float>*, std::vector<py::ssize_t>>>
      named = {
          {"residual", {&b.residual, {kMaxRows, m.hidden}}},
          {"normed", {&b.normed, {kMaxRows, m.hidden}}},
          {"q", {&b.q, {kMaxRows, m.n_heads, m.head_dim}}},
          {"attn_part", {&b.attn_part, {kMaxRows, m.n_heads, b.max_splits, m.head_dim + 2}}},
          {"attn", {&b.attn, {kMaxRows, m.n_heads * m.head_dim}}},
          {"o_out", {&b.o_out, {kMaxRows, m.hidden}}},
          {"ffn_out", {&b.ffn_out, {kMaxRows, m.hidden}}},
          {"ffn_hidden", {&b.ffn_hidden, {kMaxRows, b.max_ffn}}},
          {"router_logits", {&b.router_logits, {kMaxRows, m.n_experts}}},
          {"topk_weights", {&b.topk_weights, {kMaxRows, m.top_k}}},
          {"moe_in", {&b.moe_in, {kMaxRows * m.top_k, m.hidden}}},
          {"moe_hidden", {&b.moe_hidden, {kMaxRows, m.top_k, b.max_moe_ffn}}},
          {"moe_out", {&b.moe_out, {kMaxRows, m.top_k, m.hidden}}},
          {"logits", {&b.logits, {kMaxRows, m.vocab}}},
  };
  const auto found = named.find(name);
  CHECK_THAT(found != named.end(), "no buffer is called ", name);
  return py::array_t<float>(found->second.second, found->second.first->data(), self);
}

}  // namespace

void bind_cpu(py::module_& m) {
  PYBIND11_NUMPY_DTYPE(TaskStamp, step, taken, begun, ended, ordinal, opcode, layer, tile_begin,
                       tile_count, reserved);
  py::class_<StepRow>(m, "StepRow")
      .def(py::init([](int32_t token, int32_t position, PageArray full, PageArray sliding,
                       const SamplingConfig& sampling, std::optional<MaskArray> mask,
                       std::vector<int32_t> history) {
             return StepRow{token,    position,        {std::move(full), std::move(sliding)},
                            sampling, std::move(mask), std::move(history)};
           }),
           py::kw_only(), "token"_a, "position"_a, "full_pages"_a = PageArray(0),
           "sliding_pages"_a = PageArray(0), "sampling"_a = SamplingConfig(),
           "token_mask"_a = py::none(), "history"_a = std::vector<int32_t>())
      .def_readwrite("token", &StepRow::token)
      .def_readwrite("position", &StepRow::position)
      .def_readwrite("history", &StepRow::history);
  py::class_<CpuBackend, StepBackend>(m, "CpuBackend")
      .def(py::init(&make_cpu_backend), py::keep_alive<1, 11>(), "model"_a, "k_pages"_a,
           "v_pages"_a, "schedules"_a, py::kw_only(), "kv_format"_a = WeightFormat::kF32,
           "wait_limit_ms"_a = 4000, "delay_seed"_a = 0, "isa"_a = py::none(), "max_splits"_a = 1,
           "owners"_a = py::none())
      .def_property_readonly("n_processors", &CpuBackend::n_processors)
      .def("step", &py_step, "rows"_a)
      .def("forward", &py_forward, "rows"_a)
      .def("run_lists", &py_run_lists, "rows"_a, "lists"_a)
      .def("record_steps", &CpuBackend::record_steps, "n"_a)
      .def("stamps", &py_stamps)
      .def("buffer", &py_buffer, "name"_a);
}

}  // namespace pointcode
