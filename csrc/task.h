// Opcodes and the task descriptor: the one definition of what a processor (an SM, or a CPU worker
// thread) is told to do. Exported to Python as a NumPy dtype and an IntEnum (bindings.cc).
// docs/tasks.md says what each opcode reads and writes.
#pragma once

#include <cstdint>

namespace pointcode {

constexpr int kTileRows = 16;      // output rows of one GEMM tile
constexpr int kPageTokens = 64;    // tokens of one KV page
constexpr int kMaxRows = 8;        // live sequences in one step
constexpr int kMaxWaits = 3;       // counters one task may wait on
constexpr int kNone = -1;          // "no counter", "no queue"
constexpr int kMoeBlockTiles = 8;  // tiles of one claimed item of the MOE_* opcodes

enum class Opcode : int32_t {
  kAddRmsNorm = 0,
  kQkvProj = 1,
  kAttnDecode = 2,
  kAttnDrain = 3,
  kAttnCombine = 4,
  kOProj = 5,
  kFfnUpGateAct = 6,
  kFfnDown = 7,
  kRouterGemm = 8,
  kRouterTopK = 9,
  kRouteFinalize = 10,
  kMoeGather = 11,
  kMoeUpGateActDrain = 12,
  kMoeDownDrain = 13,
  kMoeCombine = 14,
  kLmHead = 15,
};
constexpr int kNumOpcodes = 16;

enum TaskFlag : int32_t {
  kFlagRope = 1 << 0,       // QKV_PROJ: rotate q and k
  kFlagSliding = 1 << 1,    // attention and QKV_PROJ: use KV group 1 and the model's window
  kFlagFusedNorm = 1 << 2,  // GEMMs of normed: input is the residual, the task normalises it itself
  kFlagFusedTopK = 1 << 3,  // MOE_*: derive the route from the router's logits instead of waiting
                            // for ROUTE_FINALIZE
  kFlagSliced = 1 << 4,     // MOE_*: take a fixed slice instead of claiming from the queue
  kFlagAddAttn = 1 << 5,    // ADD_RMSNORM: residual += o_out
  kFlagAddFfn = 1 << 6,     // ADD_RMSNORM: residual += ffn_out
  kFlagAddResidual = 1
      << 7,               // FFN_DOWN, MOE_DOWN_DRAIN (sliced): residual tile += o_out tile + result
  kFlagFfnNorm = 1 << 8,  // ADD_RMSNORM: use the layer's second norm (serial blocks)
  kFlagFinal = 1 << 9,    // ADD_RMSNORM, LM_HEAD: use the model's final norm
};

// 32 x int32 = 128 bytes: one cache line on the GPU.
struct TaskDescriptor {
  int32_t opcode;
  int32_t layer;
  int32_t tile_begin;  // first tile (GEMMs), batch row (norm, top-k, combine), KV head (attention)
  int32_t tile_count;  // tiles in this run
  int32_t split;       // attention: this part of the row's pages
  int32_t n_splits;    // attention: parts in all; the same for every task of the wave
  int32_t k_tiles;     // GEMMs: reduction length / 16
  int32_t flags;       // TaskFlag bits
  int32_t wait_counter[kMaxWaits];  // kNone: unused
  int32_t wait_target[kMaxWaits];   // proceed when the counter has reached this value
  int32_t signal;    // counter to add 1 to when the task's writes are visible, or kNone
  int32_t queue;     // claim queue of the DRAIN opcodes, or kNone
  int32_t n_rows;    // live rows the schedule was made for
  int32_t slice_lo;  // kFlagSliced: first item = items * slice_lo / 65536
  int32_t slice_hi;  //              end        = items * slice_hi / 65536
  int32_t wave;      // index into the schedule's wave names
  int32_t ordinal;   // position of the task in the whole schedule: its name in errors and traces
  int32_t
      claim_begin;  // kFlagSliced with a queue: items from items * claim_begin / 65536 on are claimed one by one
  int32_t ahead_tile;  // kFlagSliced gate/up: tile of O_PROJ that this processor takes next, or
                       // kNone. A hint: the GPU brings its weights nearer while there is no route
  int32_t reserved[9];
};
static_assert(sizeof(TaskDescriptor) == 128);

}  // namespace pointcode
