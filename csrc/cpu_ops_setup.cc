// What is made before tasks run: buffers, fp32 copies of norms and biases, rotation tables,
// embeddings; task validation.
#include <algorithm>
#include <cmath>

#include "check.h"
#include "cpu_ops.h"

namespace pointcode {
namespace {

constexpr WeightKind kVectorKinds[] = {WeightKind::kNormAttn, WeightKind::kQBias,
                                       WeightKind::kKBias,    WeightKind::kVBias,
                                       WeightKind::kNormFfn,  WeightKind::kFinalNorm};

size_t area(int64_t a, int64_t b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

void check_weight(const Weight& weight, int layer, int kind) {
  const int64_t bytes = packed_row_bytes(weight.format, weight.cols);
  CHECK_THAT(weight.row_bytes >= bytes &&
                 weight.matrix_bytes >= weight.row_bytes * (weight.rows - 1) + bytes,
             "weight kind ", kind, " of layer ", layer, ": row_bytes ", weight.row_bytes,
             ", matrix_bytes ", weight.matrix_bytes, " are too small for ", weight.rows, " x ",
             weight.cols);
}

// The GEMM weight that a task reads, and how many output rows its tiles span.
struct Gemm {
  WeightKind kind;
  int tiles, rows, cols, count;
};

int tiles_of(int rows) { return (rows + kTileRows - 1) / kTileRows; }

Gemm gemm_of(const ModelShape& m, const TaskDescriptor& task) {
  const int q_width = m.n_heads * m.head_dim;
  const int F =
      task.layer < m.n_layers ? m.layers[static_cast<size_t>(task.layer)].intermediate : 0;
  switch (static_cast<Opcode>(task.opcode)) {
    case Opcode::kQkvProj:
      return {WeightKind::kQ, (q_width + 2 * m.n_kv_heads * m.head_dim) / kTileRows, q_width,
              m.hidden, 1};
    case Opcode::kOProj:
      return {WeightKind::kO, tiles_of(m.hidden), m.hidden, q_width, 1};
    case Opcode::kFfnUpGateAct:
      return {WeightKind::kGate, F / (kTileRows / 2), F, m.hidden, 1};
    case Opcode::kFfnDown:
      return {WeightKind::kDown, tiles_of(m.hidden), m.hidden, F, 1};
    case Opcode::kRouterGemm:
      return {WeightKind::kRouter, tiles_of(m.n_experts), m.n_experts, m.hidden, 1};
    case Opcode::kMoeUpGateActDrain:
      return {WeightKind::kExpertGate, F / (kTileRows / 2), F, m.hidden, m.n_experts};
    case Opcode::kMoeDownDrain:
      return {WeightKind::kExpertDown, tiles_of(m.hidden), m.hidden, F, m.n_experts};
    default:
      return {WeightKind::kLmHead, tiles_of(m.vocab), m.vocab, m.hidden, 1};
  }
}

bool is_gemm(Opcode opcode) {
  return opcode == Opcode::kQkvProj || opcode == Opcode::kOProj ||
         opcode == Opcode::kFfnUpGateAct || opcode == Opcode::kFfnDown ||
         opcode == Opcode::kRouterGemm || opcode == Opcode::kMoeUpGateActDrain ||
         opcode == Opcode::kMoeDownDrain || opcode == Opcode::kLmHead;
}

void check_shape(const ModelShape& m, const TaskDescriptor& task, WeightKind kind, const Gemm& gemm,
                 int rows) {
  const int layer = kind == WeightKind::kLmHead ? m.n_layers : task.layer;
  const Weight& weight = m.weight(layer, kind);
  CHECK_THAT(weight.data != nullptr && weight.rows == rows && weight.cols == gemm.cols &&
                 weight.count >= gemm.count,
             opcode_name(task.opcode), " of layer ", task.layer, " needs ", gemm.count, " x (",
             rows, ", ", gemm.cols, ") weights, got ", weight.count, " x (", weight.rows, ", ",
             weight.cols, ")", weight.data == nullptr ? " without data" : "");
}

// All the matrices that the task multiplies with.
void check_gemm_weights(const ModelShape& m, const TaskDescriptor& task) {
  const Gemm gemm = gemm_of(m, task);
  check_shape(m, task, gemm.kind, gemm, gemm.rows);
  if (gemm.kind == WeightKind::kGate) check_shape(m, task, WeightKind::kUp, gemm, gemm.rows);
  if (gemm.kind == WeightKind::kExpertGate)
    check_shape(m, task, WeightKind::kExpertUp, gemm, gemm.rows);
  if (gemm.kind != WeightKind::kQ) return;
  for (const WeightKind kind : {WeightKind::kK, WeightKind::kV}) {
    check_shape(m, task, kind, gemm, m.n_kv_heads * m.head_dim);
  }
}

// Number of things that tile_begin and tile_count may count, or -1 for opcodes that do not use
// them.
int tile_limit(const StepContext& c, const TaskDescriptor& task) {
  const ModelShape& m = *c.model;
  switch (static_cast<Opcode>(task.opcode)) {
    case Opcode::kAddRmsNorm:
    case Opcode::kRouterTopK:
    case Opcode::kMoeCombine:
      return task.n_rows;
    case Opcode::kAttnDecode:
      return m.n_kv_heads;
    case Opcode::kAttnCombine:
      return task.n_rows * m.n_heads * m.head_dim / kTileRows;
    case Opcode::kMoeGather:
      return task.n_rows * m.top_k;
    case Opcode::kAttnDrain:
    case Opcode::kRouteFinalize:
    case Opcode::kMoeUpGateActDrain:
      return -1;
    case Opcode::kMoeDownDrain:
      return task.flags & kFlagSliced ? gemm_of(m, task).tiles : -1;
    default:
      return gemm_of(m, task).tiles;
  }
}

bool claims(const TaskDescriptor& task) {
  const auto opcode = static_cast<Opcode>(task.opcode);
  const bool moe = opcode == Opcode::kMoeUpGateActDrain || opcode == Opcode::kMoeDownDrain;
  return opcode == Opcode::kAttnDrain || (moe && !(task.flags & kFlagSliced));
}

}  // namespace

StepBuffers::StepBuffers(const ModelShape& m, int32_t splits) : max_splits(std::max(splits, 1)) {
  for (const LayerShape& layer : m.layers) {
    int32_t& width = layer.moe ? max_moe_ffn : max_ffn;
    width = std::max(width, layer.intermediate);
  }
  const int64_t q_width = static_cast<int64_t>(m.n_heads) * m.head_dim;
  const auto floats = [](int64_t columns) { return AlignedArray<float>(area(kMaxRows, columns)); };
  residual = floats(m.hidden);
  normed = floats(m.hidden);
  q = floats(q_width);
  attn_part = floats(static_cast<int64_t>(m.n_heads) * max_splits * (m.head_dim + 2));
  attn = floats(q_width);
  o_out = floats(m.hidden);
  ffn_out = floats(m.hidden);
  ffn_hidden = floats(max_ffn);
  router_logits = floats(m.n_experts);
  topk_weights = floats(m.top_k);
  topk_ids = AlignedArray<int32_t>(area(kMaxRows, m.top_k));
  moe_in = floats(static_cast<int64_t>(m.top_k) * m.hidden);
  moe_hidden = floats(static_cast<int64_t>(m.top_k) * max_moe_ffn);
  moe_out = floats(static_cast<int64_t>(m.top_k) * m.hidden);
  logits = floats(m.vocab);
}

StepContext::StepContext(const ModelShape& m, const DotTable& table, StepBuffers& step_buffers)
    : model(&m), kernels(&table), buffers(&step_buffers) {
  CHECK_THAT(m.head_dim % kTileRows == 0 && m.n_kv_heads > 0 && m.n_heads % m.n_kv_heads == 0,
             "head_dim must be a multiple of ", kTileRows, " and heads of KV heads; got ",
             m.head_dim, ", ", m.n_heads, ", ", m.n_kv_heads);
  CHECK_THAT(m.layers.size() == static_cast<size_t>(m.n_layers) &&
                 m.weights.size() == area(m.n_layers + 1, kNumWeightKinds),
             "a model of ", m.n_layers, " layers came with ", m.layers.size(), " layer shapes and ",
             m.weights.size(), " weights");
  for (int layer = 0; layer <= m.n_layers; ++layer) {
    for (int kind = 0; kind < kNumWeightKinds; ++kind) {
      const Weight& weight = m.weight(layer, static_cast<WeightKind>(kind));
      if (weight.data != nullptr) check_weight(weight, layer, kind);
    }
  }
  vectors.resize(m.weights.size());
  for (size_t i = 0; i < m.weights.size(); ++i) {
    const auto kind = static_cast<WeightKind>(i % kNumWeightKinds);
    const Weight& weight = m.weights[i];
    if (weight.data == nullptr ||
        std::find(std::begin(kVectorKinds), std::end(kVectorKinds), kind) == std::end(kVectorKinds))
      continue;
    vectors[i].resize(static_cast<size_t>(weight.cols));
    table.dequantize[static_cast<int>(weight.format)](static_cast<const uint8_t*>(weight.data),
                                                      weight.cols, vectors[i].data());
  }
  const int half = m.head_dim / 2;
  for (int i = 0; i < half; ++i) {
    inv_freq.push_back(
        1.f / std::pow(m.rope_theta, static_cast<float>(2 * i) / static_cast<float>(m.head_dim)));
  }
  rope_cos = AlignedArray<float>(area(kMaxRows, half));
  rope_sin = AlignedArray<float>(area(kMaxRows, half));
}

void set_rotations(StepContext& c) {
  const size_t half = c.inv_freq.size();
  for (size_t r = 0; r < c.rows->size(); ++r) {
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>((*c.rows)[r].position) * c.inv_freq[i];
      c.rope_cos[r * half + i] = std::cos(angle);
      c.rope_sin[r * half + i] = std::sin(angle);
    }
  }
}

void embed_rows(StepContext& c) {
  const ModelShape& m = *c.model;
  const Weight& embed = m.weight(m.n_layers, WeightKind::kEmbed);
  for (size_t r = 0; r < c.rows->size(); ++r) {
    const BatchRow& row = (*c.rows)[r];
    CHECK_THAT(row.token >= 0 && row.token < embed.rows, "token ", row.token,
               " is outside a vocabulary of ", embed.rows);
    c.kernels->dequantize[static_cast<int>(embed.format)](
        static_cast<const uint8_t*>(embed.data) + row.token * embed.row_bytes, embed.cols,
        c.buffers->residual.data() + r * static_cast<size_t>(m.hidden));
  }
}

void validate_task(const StepContext& c, const TaskDescriptor& task, int n_queues) {
  const ModelShape& m = *c.model;
  const char* name = opcode_name(task.opcode);
  CHECK_THAT(task.opcode >= 0 && task.opcode < kNumOpcodes, "unknown opcode ", task.opcode);
  const auto opcode = static_cast<Opcode>(task.opcode);
  const bool layerless =
      opcode == Opcode::kLmHead || (opcode == Opcode::kAddRmsNorm && task.flags & kFlagFinal);
  CHECK_THAT(layerless || (task.layer >= 0 && task.layer < m.n_layers), name, ": no layer ",
             task.layer);
  if (is_gemm(opcode)) check_gemm_weights(m, task);
  const bool cached =
      opcode == Opcode::kQkvProj || opcode == Opcode::kAttnDecode || opcode == Opcode::kAttnDrain;
  CHECK_THAT(!cached || m.layers[static_cast<size_t>(task.layer)].sliding ==
                            ((task.flags & kFlagSliding) != 0),
             name, " of layer ", task.layer, ": the sliding flag is not the layer's");
  const int limit = tile_limit(c, task);
  CHECK_THAT(limit < 0 || (task.tile_begin >= 0 && task.tile_count >= 0 &&
                           task.tile_begin + task.tile_count <= limit),
             name, " of layer ", task.layer, ": tiles ", task.tile_begin, " + ", task.tile_count,
             " exceed ", limit);
  CHECK_THAT(!claims(task) || (task.queue >= 0 && task.queue < n_queues), name, " of layer ",
             task.layer, ": queue ", task.queue, " is none of ", n_queues);
  const bool attention = opcode == Opcode::kAttnDecode || opcode == Opcode::kAttnDrain ||
                         opcode == Opcode::kAttnCombine;
  const bool splits = attention || opcode == Opcode::kMoeCombine;
  CHECK_THAT(!splits || (task.n_splits >= 1 &&
                         (opcode == Opcode::kAttnDrain || opcode == Opcode::kAttnCombine ||
                          (task.split >= 0 && task.split < task.n_splits))),
             name, " of layer ", task.layer, ": split ", task.split, " of ", task.n_splits);
  CHECK_THAT(!attention || task.n_splits <= c.buffers->max_splits, name, " of layer ", task.layer,
             ": ", task.n_splits, " splits, the buffers hold ", c.buffers->max_splits);
  CHECK_THAT(task.slice_lo >= 0 && task.slice_lo <= task.slice_hi && task.slice_hi <= 65536, name,
             ": slice ", task.slice_lo, " to ", task.slice_hi);
}

}  // namespace pointcode
