// The Python module `_native`: the only file that knows Python. One bind_* function per area.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "model_shape.h"
#include "task.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace pointcode {
namespace {

void bind_opcodes(py::module_& m) {
  py::native_enum<Opcode>(m, "Opcode", "enum.IntEnum", "What a task does; docs/tasks.md has the contract.")
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

// The descriptor as a NumPy dtype with the C++ offsets, and the constants that schedules are made of.
void bind_task(py::module_& m) {
  bind_opcodes(m);
  bind_flags(m);
  PYBIND11_NUMPY_DTYPE(TaskDescriptor, opcode, layer, tile_begin, tile_count, split, n_splits, k_tiles, flags,
                       wait_counter, wait_target, signal, queue, n_rows, slice_lo, slice_hi, wave, ordinal, reserved);
  m.attr("TASK_DTYPE") = py::dtype::of<TaskDescriptor>();
  m.attr("TILE_ROWS") = kTileRows;
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.attr("MAX_ROWS") = kMaxRows;
  m.attr("MAX_WAITS") = kMaxWaits;
  m.attr("NONE") = kNone;
}

}  // namespace
}  // namespace pointcode

PYBIND11_MODULE(_native, m) {
  m.doc() = "Native part of the engine: task layout, CPU backend, decode service.";
  pointcode::bind_task(m);
}
