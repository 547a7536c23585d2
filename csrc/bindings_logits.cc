// A step backend whose logits come from Python: the fallback for GPUs that the megakernel does not run on.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "check.h"
#include "deferred_backend.h"
#include "sampling.h"
#include "step_backend.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace pointcode {
namespace {

// Calls forward(tokens, positions, pages) under the GIL, on the decode thread. `pages` is a list with the (full,
// sliding) page tables of every row after the batch changed, else None. The answer is a (rows, vocab) fp32 array.
class __attribute__((visibility("hidden"))) LogitsBackend final : public StepBackend {
 public:
  LogitsBackend(std::string name, int32_t vocab, py::function forward)
      : name_(std::move(name)), vocab_(vocab), sampler_(vocab), forward_(std::move(forward)) {}

  void set_batch(const std::vector<BatchRow>& /*rows*/) override { changed_ = true; }

  void step(const std::vector<BatchRow>& rows, std::vector<RowResult>& results) override {
    const auto n = static_cast<py::ssize_t>(rows.size());
    if (results.size() < rows.size()) results.resize(rows.size());
    if (n == 0) return;
    const py::gil_scoped_acquire locked;
    const auto logits = ask(rows, n);
    const float* values = logits.data();
    const py::gil_scoped_release unlocked;
    for (size_t r = 0; r < rows.size(); ++r) {
      sampler_.sample(values + r * static_cast<size_t>(vocab_), rows[r], results[r]);
    }
  }

  std::string name() const override { return name_; }

 private:
  using Logits = py::array_t<float, py::array::c_style>;

  Logits ask(const std::vector<BatchRow>& rows, py::ssize_t n) {
    try {
      py::array_t<int32_t> tokens(n), positions(n);
      py::object pages = py::none();
      if (changed_) pages = py::list();
      for (py::ssize_t r = 0; r < n; ++r) {
        const BatchRow& row = rows[static_cast<size_t>(r)];
        tokens.mutable_at(r) = row.token;
        positions.mutable_at(r) = row.position;
        if (!changed_) continue;
        pages.cast<py::list>().append(
            py::make_tuple(py::array_t<int32_t>(row.n_pages[0], row.pages[0]),
                           py::array_t<int32_t>(row.n_pages[1], row.pages[1])));
      }
      auto logits = forward_(tokens, positions, pages).cast<Logits>();
      CHECK_THAT(logits.ndim() == 2 && logits.shape(0) == n && logits.shape(1) == vocab_,
                 "the logits of ", n, " rows must be (", n, ", ", vocab_, ")");
      changed_ = false;
      return logits;
    } catch (const py::error_already_set& error) {
      fail(error.what());  // while the GIL is held: the exception holds Python objects
    }
  }

  std::string name_;
  int32_t vocab_;
  Sampler sampler_;
  py::function forward_;
  bool changed_ = true;
};

}  // namespace

void bind_logits(py::module_& m) {
  py::class_<LogitsBackend, StepBackend>(m, "LogitsBackend")
      .def(py::init<std::string, int32_t, py::function>(), "name"_a, "vocab"_a, "forward"_a);
  py::class_<DeferredBackend, StepBackend>(m, "DeferredBackend")
      .def(py::init<StepBackend&>(), py::keep_alive<1, 2>(), "inner"_a)
      .def_property_readonly("n_under_way", &DeferredBackend::n_under_way)
      .def_property_readonly("n_ahead", &DeferredBackend::n_ahead);
}

}  // namespace pointcode
