// The Python module `_native`: task layout and decode service here, the rest in bindings_*.cc.
#include "bindings.h"

#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "decode_service.h"
#include "model_shape.h"
#include "step_backend.h"
#include "task.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace pointcode {
namespace {

void bind_opcodes(py::module_& m) {
  py::native_enum<Opcode>(m, "Opcode", "enum.IntEnum",
                          "What a task does; docs/tasks.md has the contract.")
      .value("ADD_RMSNORM", Opcode::kAddRmsNorm)
      .value("QKV_PROJ", Opcode::kQkvProj)
      .value("ATTN_DECODE", Opcode::kAttnDecode)
      .value("ATTN_DRAIN", Opcode::kAttnDrain)
      .value("ATTN_COMBINE", Opcode::kAttnCombine)
      .value("O_PROJ", Opcode::kOProj)
      .value("FFN_UPGATE_ACT", Opcode::kFfnUpGateAct)
      .value("FFN_DOWN", Opcode::kFfnDown)
      .value("ROUTER_GEMM", Opcode::kRouterGemm)
      .value("ROUTER_TOPK", Opcode::kRouterTopK)
      .value("ROUTE_FINALIZE", Opcode::kRouteFinalize)
      .value("MOE_GATHER", Opcode::kMoeGather)
      .value("MOE_UPGATE_ACT_DRAIN", Opcode::kMoeUpGateActDrain)
      .value("MOE_DOWN_DRAIN", Opcode::kMoeDownDrain)
      .value("MOE_COMBINE", Opcode::kMoeCombine)
      .value("LM_HEAD", Opcode::kLmHead)
      .finalize();
}

void bind_flags(py::module_& m) {
  py::native_enum<TaskFlag>(m, "TaskFlag", "enum.IntFlag", "Variants of a task.")
      .value("ROPE", kFlagRope)
      .value("SLIDING", kFlagSliding)
      .value("FUSED_NORM", kFlagFusedNorm)
      .value("FUSED_TOPK", kFlagFusedTopK)
      .value("SLICED", kFlagSliced)
      .value("ADD_ATTN", kFlagAddAttn)
      .value("ADD_FFN", kFlagAddFfn)
      .value("ADD_RESIDUAL", kFlagAddResidual)
      .value("FFN_NORM", kFlagFfnNorm)
      .value("FINAL", kFlagFinal)
      .finalize();
}

// The descriptor as a NumPy dtype with the C++ offsets, and the constants that schedules are made
// of.
void bind_task(py::module_& m) {
  bind_opcodes(m);
  bind_flags(m);
  PYBIND11_NUMPY_DTYPE(TaskDescriptor, opcode, layer, tile_begin, tile_count, split, n_splits,
                       k_tiles, flags, wait_counter, wait_target, signal, queue, n_rows, slice_lo,
                       slice_hi, wave, ordinal, claim_begin, ahead_tile, reserved);
  m.attr("TASK_DTYPE") = py::dtype::of<TaskDescriptor>();
  m.def("task_dtype", [] { return py::dtype::of<TaskDescriptor>(); });
  m.attr("TILE_ROWS") = kTileRows;
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.attr("MAX_ROWS") = kMaxRows;
  m.attr("MAX_WAITS") = kMaxWaits;
  m.attr("NONE") = kNone;
}

// ------------------------------------------------------------------------------------------------
// decode service What Python holds: the service and a reference that keeps the backend's Python
// object (and so its weights) alive.
struct PyService {
  explicit PyService(size_t ring_capacity) : service(ring_capacity) {}
  ~PyService() {
    py::gil_scoped_release release;  // joining must not hold up other Python threads
    service.close();
  }
  DecodeService service;
  py::object backend = py::none();
};

using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Words = py::array_t<uint32_t, py::array::c_style | py::array::forcecast>;

template <typename T, typename Array>
std::vector<T> to_vector(const Array& array) {
  return std::vector<T>(array.data(), array.data() + array.size());
}

py::list drain_ring(DecodeService& service, size_t limit) {
  py::list out;
  while (const TokenRecord* record = limit-- > 0 ? service.ring().front() : nullptr) {
    py::object logprobs = py::none();
    if (record->n_logprobs > 0) {
      py::dict values;
      for (int i = 0; i < record->n_logprobs; ++i) {
        values[py::int_(record->logprob_ids[i])] = record->logprob_values[i];
      }
      logprobs = std::move(values);
    }
    out.append(py::make_tuple(record->request, record->token, record->flags, std::move(logprobs)));
    service.ring().pop();
  }
  service.records_taken();
  return out;
}

void add_row(PyService& self, int64_t request, const Ints& history, int32_t max_tokens,
             std::vector<int32_t> stop_ids, const SamplingConfig& sampling, const Ints& full_pages,
             const Ints& sliding_pages, const std::optional<Words>& mask,
             const std::optional<Words>& watch) {
  RowSpec spec;
  spec.request = request;
  spec.history = to_vector<int32_t>(history);
  spec.max_tokens = max_tokens;
  spec.stop_ids = std::move(stop_ids);
  spec.sampling = sampling;
  spec.pages[0] = to_vector<int32_t>(full_pages);
  spec.pages[1] = to_vector<int32_t>(sliding_pages);
  spec.grammar = mask.has_value() || watch.has_value();
  spec.masked = mask.has_value();
  if (mask) spec.mask = to_vector<uint32_t>(*mask);
  if (watch) spec.watch = to_vector<uint32_t>(*watch);
  self.service.add_row(std::move(spec));
}

py::list list_rows(PyService& self) {
  py::list out;
  for (const RowView& row : self.service.rows()) {
    out.append(py::make_tuple(row.request, row.end, row.position, row.n_generated, row.n_pages));
  }
  return out;
}

py::list wait_queries(PyService& self, double timeout_s) {
  std::vector<MaskQuery> queries;
  {
    py::gil_scoped_release release;
    queries = self.service.wait_queries(timeout_s);
  }
  py::list out;
  for (const MaskQuery& query : queries) {
    std::vector<int32_t> recent(query.recent, query.recent + query.n_recent);
    std::vector<int32_t> draft(query.draft.begin(), query.draft.begin() + query.n_draft);
    out.append(
        py::make_tuple(query.request, query.n_generated, std::move(recent), std::move(draft)));
  }
  return out;
}

void bind_service_enums(py::module_& m) {
  py::native_enum<RowEnd>(m, "RowEnd", "enum.IntEnum", "Why a row takes part in no more steps.")
      .value("RUNNING", RowEnd::kRunning)
      .value("STOP", RowEnd::kStop)
      .value("LENGTH", RowEnd::kLength)
      .value("CANCELLED", RowEnd::kCancelled)
      .value("NAN", RowEnd::kNan)
      .value("BACKEND", RowEnd::kBackend)
      .finalize();
  py::native_enum<Notice>(m, "Notice", "enum.IntFlag", "What the control thread is told.")
      .value("ENDED", kNoticeEnded)
      .value("PAGES", kNoticePages)
      .value("FAILED", kNoticeFailed)
      .value("WOKEN", kNoticeWoken)
      .finalize();
  py::native_enum<TokenFlag>(m, "TokenFlag", "enum.IntFlag",
                             "What a record of the token ring says.")
      .value("VALID", kTokenValid)
      .value("END_STOP", kEndStop)
      .value("END_LENGTH", kEndLength)
      .value("END_NAN", kEndNan)
      .value("END_BACKEND", kEndBackend)
      .finalize();
}

void bind_sampling_config(py::module_& m) {
  py::class_<SamplingConfig>(m, "SamplingConfig")
      .def(py::init([](float temperature, int32_t top_k, float top_p, float min_p,
                       float repetition_penalty, float frequency_penalty, float presence_penalty,
                       std::vector<std::pair<int32_t, float>> logit_bias, uint64_t seed,
                       int32_t n_logprobs) {
             return SamplingConfig{temperature,
                                   top_p,
                                   min_p,
                                   repetition_penalty,
                                   frequency_penalty,
                                   presence_penalty,
                                   top_k,
                                   n_logprobs,
                                   seed,
                                   std::move(logit_bias)};
           }),
           py::kw_only(), "temperature"_a = 0.f, "top_k"_a = 0, "top_p"_a = 1.f, "min_p"_a = 0.f,
           "repetition_penalty"_a = 1.f, "frequency_penalty"_a = 0.f, "presence_penalty"_a = 0.f,
           "logit_bias"_a = std::vector<std::pair<int32_t, float>>{}, "seed"_a = uint64_t{0},
           "n_logprobs"_a = 0);
}

using Service = py::class_<PyService>;
using Release = py::call_guard<py::gil_scoped_release>;

// The thread: when it runs, and on what.
void bind_loop(Service& service) {
  service.def(py::init<size_t>(), "ring_capacity"_a = 4096)
      .def(
          "park", [](PyService& s, double timeout_s) { return s.service.park(timeout_s); },
          "timeout_s"_a, Release())
      .def(
          "resume", [](PyService& s) { s.service.resume(); }, Release())
      .def(
          "close", [](PyService& s) { s.service.close(); }, Release())
      .def(
          "set_backend",
          [](PyService& s, py::object backend) {
            s.service.set_backend(backend.is_none() ? nullptr : backend.cast<StepBackend*>());
            s.backend = std::move(backend);
          },
          "backend"_a)
      .def(
          "set_drafts", [](PyService& s, bool enabled) { s.service.set_drafts(enabled); },
          "enabled"_a)
      .def(
          "set_run_ahead", [](PyService& s, bool enabled) { s.service.set_run_ahead(enabled); },
          "enabled"_a)
      .def(
          "set_shared", [](PyService& s, bool shared) { s.service.set_shared(shared); }, "shared"_a,
          Release());
}

// Any thread may cancel a row; the rest is for the thread that has parked the service.
void bind_rows(Service& service) {
  service
      .def("add_row", &add_row, "request"_a, "history"_a, "max_tokens"_a, "stop_ids"_a,
           "sampling"_a, "full_pages"_a, "sliding_pages"_a, "mask"_a = py::none(),
           "watch"_a = py::none())
      .def(
          "set_pages",
          [](PyService& s, int64_t request, int group, const Ints& pages) {
            s.service.set_pages(request, group, to_vector<int32_t>(pages));
          },
          "request"_a, "group"_a, "pages"_a)
      .def("rows", &list_rows)
      .def(
          "remove_row", [](PyService& s, int64_t request) { return s.service.remove_row(request); },
          "request"_a)
      .def(
          "cancel", [](PyService& s, int64_t request) { return s.service.cancel(request); },
          "request"_a, Release());
}

// What it tells and asks while it runs.
void bind_messages(Service& service) {
  service
      .def(
          "wait_notices",
          [](PyService& s, double timeout_s) { return s.service.wait_notices(timeout_s); },
          "timeout_s"_a, Release())
      .def(
          "wake", [](PyService& s) { s.service.wake(); }, Release())
      .def("wait_queries", &wait_queries, "timeout_s"_a)
      .def(
          "answer",
          [](PyService& s, int64_t request, int32_t n_generated, const std::vector<Words>& masks) {
            std::vector<std::vector<uint32_t>> words;
            for (const Words& mask : masks) words.push_back(to_vector<uint32_t>(mask));
            s.service.answer(request, n_generated, words);
          },
          "request"_a, "n_generated"_a, "masks"_a = py::list())
      .def(
          "wake_masks", [](PyService& s) { s.service.wake_masks(); }, Release())
      .def(
          "drain", [](PyService& s, size_t limit) { return drain_ring(s.service, limit); },
          "limit"_a = 1024)
      .def_property_readonly("event_fd", [](PyService& s) { return s.service.event_fd(); });
}

void bind_counts(Service& service) {
  service.def_property_readonly("error", [](PyService& s) { return s.service.error(); })
      .def_property_readonly("steps", [](PyService& s) { return s.service.steps(); })
      .def_property_readonly("busy_ns", [](PyService& s) { return s.service.busy_ns(); })
      .def_property_readonly("drafted", [](PyService& s) { return s.service.drafted(); })
      .def_property_readonly("accepted", [](PyService& s) { return s.service.accepted(); });
}

void bind_draft(py::module_& m) {
  m.def(
      "look_up_draft",
      [](const std::vector<int32_t>& history, int max_tokens) {
        const Draft draft = look_up_draft(history, max_tokens);
        return py::make_tuple(draft.match, std::vector<int32_t>(draft.tokens.begin(),
                                                                draft.tokens.begin() + draft.n));
      },
      "history"_a, "max_tokens"_a);
}

void bind_service(py::module_& m) {
  m.attr("MAX_LOGPROBS") = kMaxLogprobs - 1;
  bind_service_enums(m);
  bind_sampling_config(m);
  py::class_<StepBackend>(m, "StepBackend").def_property_readonly("name", &StepBackend::name);
  Service service(m, "DecodeService");
  bind_loop(service);
  bind_rows(service);
  bind_messages(service);
  bind_counts(service);
  bind_draft(m);
}

}  // namespace
}  // namespace pointcode

PYBIND11_MODULE(_native, m) {
  m.doc() = "Native part of the engine: task layout, CPU backend, decode service.";
  pointcode::bind_task(m);
  pointcode::bind_service(m);
  pointcode::bind_model(m);
  pointcode::bind_linear(m);
  pointcode::bind_sampling(m);
  pointcode::bind_cpu(m);
  pointcode::bind_cuda(m);
  pointcode::bind_logits(m);
  pointcode::bind_prefill(m);
}
