// The 16 opcodes on the CPU: what a worker thread does for one task. No synchronisation here except
// the claim queues.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "aligned_array.h"
#include "cpu_dot.h"
#include "cpu_wait.h"
#include "model_shape.h"
#include "step_backend.h"
#include "task.h"

namespace pointcode {

// Where the KV cache of a layer lies: K and V each (page, KV head, 64 tokens, head_dim) of
// `kv_format`.
struct LayerCache {
  uint8_t* k = nullptr;
  uint8_t* v = nullptr;
};

// Which experts run for which rows: pairs (row, slot) grouped by expert, experts ascending, rows
// ascending in each.
struct Route {
  int32_t n_union = 0;
  std::vector<int32_t> expert;      // (n_union)
  std::vector<int32_t> first_pair;  // (n_union + 1)
  std::vector<int32_t> pair_row, pair_slot;
  std::vector<float> pair_weight;
};

// Activations of one step, fp32, laid out for kMaxRows rows; the letters are those of
// docs/tasks.md.
struct StepBuffers {
  int32_t max_ffn = 0, max_moe_ffn = 0, max_splits = 1;
  AlignedArray<float> residual, normed, q, attn_part, attn, o_out, ffn_out, ffn_hidden;
  AlignedArray<float> router_logits, topk_weights, moe_in, moe_hidden, moe_out, logits;
  AlignedArray<int32_t> topk_ids;
  Route route;

  StepBuffers() = default;
  StepBuffers(const ModelShape& model, int32_t splits);
};

// What every task of a step may look at.
struct StepContext {
  const ModelShape* model = nullptr;
  const DotTable* kernels = nullptr;
  StepBuffers* buffers = nullptr;
  std::vector<LayerCache> caches;
  WeightFormat kv_format = WeightFormat::kF32;
  std::vector<std::vector<float>>
      vectors;                             // norms and biases as fp32; index as ModelShape::weights
  std::vector<float> inv_freq;             // (head_dim / 2)
  AlignedArray<float> rope_cos, rope_sin;  // (kMaxRows, head_dim / 2)
  const std::vector<BatchRow>* rows = nullptr;
  PaddedCounter* queues = nullptr;

  StepContext() = default;
  StepContext(const ModelShape& shape, const DotTable& table, StepBuffers& step_buffers);

  int n_rows() const { return static_cast<int>(rows->size()); }
  const float* vector(int layer, WeightKind kind) const {
    return vectors[static_cast<size_t>(layer) * kNumWeightKinds + static_cast<size_t>(kind)].data();
  }
};

// Activations in the form that a format's kernel wants, made on first use and kept while the same
// rows are asked for.
class PackCache {
 public:
  // Packed rows of x for `format`, or nullptr where its kernel reads fp32.
  const uint8_t* get(const DotTable& kernels, WeightFormat format, const float* x, int64_t stride,
                     int n_rows, int cols);
  // Must be called when values behind a pointer change: at the start of a task, and when a buffer
  // is refilled.
  void forget() { keys_.fill({}); }

 private:
  struct Key {
    const float* x = nullptr;
    int n_rows = 0, cols = 0;
    bool operator==(const Key&) const = default;
  };
  std::array<Key, kNumFormats> keys_;
  std::array<AlignedArray<uint8_t>, kNumFormats> data_;
};

// Memory of one worker, reused by all its tasks.
struct WorkerScratch {
  PackCache packs;
  std::vector<float> input;  // normalised or gathered activation rows
  std::vector<float> output;
  std::vector<float> gathered;  // rows of one expert side by side
  std::vector<float> sums;
  std::vector<float> scores;
  Route route;
  std::vector<int32_t> topk_ids;
  std::vector<float> topk_weights;
};

// Throws std::runtime_error when the task reaches outside the model, the buffers or the `n_queues`
// queues.
void validate_task(const StepContext& context, const TaskDescriptor& task, int n_queues);
void run_task(const StepContext& context, const TaskDescriptor& task, WorkerScratch& scratch);

const char* opcode_name(int32_t opcode);

// Before the lists: embeddings of the fed tokens into `residual`; rotation tables of the rows'
// positions.
void embed_rows(StepContext& context);
void set_rotations(StepContext& context);

// --- parts, shared by the cpu_ops_*.cc files ---

// y[r][i] = W[row_begin + i] . x[r] for matrix `index` of a bank.
void project(const StepContext& context, PackCache& packs, const Weight& weight, int index,
             int row_begin, int n_weights, const float* x, int64_t x_stride, int n_rows, float* y,
             int64_t y_stride);
void normalise(const StepContext& context, const float* weight, const float* x, float* out);
// The (R, hidden) input of a task: `normed`, or with FUSED_NORM the residual normalised into the
// scratch.
const float* task_input(const StepContext& context, const TaskDescriptor& task, WeightKind norm,
                        WorkerScratch& scratch);

void attention_task(const StepContext& context, const TaskDescriptor& task, WorkerScratch& scratch);
void attention_combine(const StepContext& context, const TaskDescriptor& task);
void router_topk(const StepContext& context, const float* logits, int32_t* ids, float* weights);
void build_route(const StepContext& context, const int32_t* ids, const float* weights,
                 Route& route);
void moe_task(const StepContext& context, const TaskDescriptor& task, WorkerScratch& scratch);

// fp32 values into the cache's format; `index` counts elements.
void store_cache(uint8_t* base, WeightFormat format, int64_t index, const float* values, int n);

}  // namespace pointcode
