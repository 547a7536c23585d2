#include "cpu_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "check.h"

namespace pointcode {
namespace {

constexpr const char* kOpcodeNames[kNumOpcodes] = {
    "ADD_RMSNORM",          "QKV_PROJ",       "ATTN_DECODE",    "ATTN_DRAIN",
    "ATTN_COMBINE",         "O_PROJ",         "FFN_UPGATE_ACT", "FFN_DOWN",
    "ROUTER_GEMM",          "ROUTER_TOPK",    "ROUTE_FINALIZE", "MOE_GATHER",
    "MOE_UPGATE_ACT_DRAIN", "MOE_DOWN_DRAIN", "MOE_COMBINE",    "LM_HEAD",
};
constexpr int kUnitsPerUpGateTile = kTileRows / 2;

// Where tile `tile` of QKV_PROJ lies: `head` counts queries of the whole model, or KV heads for
// keys and values.
struct QkvTile {
  enum Part { kQuery, kKey, kValue } part;
  int head = 0, tile_in_head = 0;
};

QkvTile locate_qkv_tile(const ModelShape& model, int tile) {
  const int tiles_per_head = model.head_dim / kTileRows;
  const int group_size = model.n_heads / model.n_kv_heads;
  const int slot = tile / tiles_per_head;
  const int group = slot / (group_size + 2), member = slot % (group_size + 2);
  const int in_head = tile % tiles_per_head;
  if (member < group_size) return {QkvTile::kQuery, group * group_size + member, in_head};
  return {member == group_size ? QkvTile::kKey : QkvTile::kValue, group, in_head};
}

// Row within its head of element i of a tile. With half-split rotation a tile of a query or key
// head holds 8 pairs.
int row_in_head(const ModelShape& model, const QkvTile& tile, int i) {
  if (model.rope_interleaved || tile.part == QkvTile::kValue)
    return tile.tile_in_head * kTileRows + i;
  constexpr int kPairs = kTileRows / 2;
  return tile.tile_in_head * kPairs + (i < kPairs ? i : model.head_dim / 2 + i - kPairs);
}

void rotate_tile(const StepContext& c, const QkvTile& tile, int row, float* y) {
  const int half = c.model->head_dim / 2;
  const float* cos = c.rope_cos.data() + row * half;
  const float* sin = c.rope_sin.data() + row * half;
  constexpr int kPairs = kTileRows / 2;
  for (int p = 0; p < kPairs; ++p) {
    const int first = c.model->rope_interleaved ? 2 * p : p;
    const int second = c.model->rope_interleaved ? 2 * p + 1 : p + kPairs;
    const int angle = tile.tile_in_head * kPairs + p;
    const float a = y[first], b = y[second];
    y[first] = a * cos[angle] - b * sin[angle];
    y[second] = b * cos[angle] + a * sin[angle];
  }
}

void store_qkv(const StepContext& c, const TaskDescriptor& task, const QkvTile& tile, int row,
               const float* y) {
  const ModelShape& model = *c.model;
  const int run =
      model.rope_interleaved || tile.part == QkvTile::kValue ? kTileRows : kTileRows / 2;
  const BatchRow& batch_row = (*c.rows)[static_cast<size_t>(row)];
  for (int i = 0; i < kTileRows; i += run) {
    const int in_head = row_in_head(model, tile, i);
    if (tile.part == QkvTile::kQuery) {
      float* q = c.buffers->q.data() +
                 (static_cast<int64_t>(row) * model.n_heads + tile.head) * model.head_dim + in_head;
      std::copy(y + i, y + i + run, q);
      continue;
    }
    const int kv_group = task.flags & kFlagSliding ? 1 : 0;
    const int64_t page = batch_row.pages[kv_group][batch_row.position / kPageTokens];
    const int64_t token =
        (page * model.n_kv_heads + tile.head) * kPageTokens + batch_row.position % kPageTokens;
    const LayerCache& cache = c.caches[static_cast<size_t>(task.layer)];
    store_cache(tile.part == QkvTile::kKey ? cache.k : cache.v, c.kv_format,
                token * model.head_dim + in_head, y + i, run);
  }
}

void qkv_proj(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  const float* x = task_input(c, task, WeightKind::kNormAttn, scratch);
  constexpr WeightKind kWeights[3] = {WeightKind::kQ, WeightKind::kK, WeightKind::kV};
  constexpr WeightKind kBiases[3] = {WeightKind::kQBias, WeightKind::kKBias, WeightKind::kVBias};
  const int R = c.n_rows();
  float y[kMaxRows][kTileRows];
  for (int t = task.tile_begin; t < task.tile_begin + task.tile_count; ++t) {
    const QkvTile tile = locate_qkv_tile(model, t);
    const Weight& weight = model.weight(task.layer, kWeights[tile.part]);
    const float* bias = c.vector(task.layer, kBiases[tile.part]);
    const int run =
        model.rope_interleaved || tile.part == QkvTile::kValue ? kTileRows : kTileRows / 2;
    for (int i = 0; i < kTileRows; i += run) {
      const int row_begin = tile.head * model.head_dim + row_in_head(model, tile, i);
      project(c, scratch.packs, weight, 0, row_begin, run, x, model.hidden, R, &y[0][i], kTileRows);
      for (int r = 0; r < R && bias != nullptr; ++r) {
        for (int j = 0; j < run; ++j) y[r][i + j] += bias[row_begin + j];
      }
    }
    for (int r = 0; r < R; ++r) {
      if (task.flags & kFlagRope && tile.part != QkvTile::kValue) rotate_tile(c, tile, r, y[r]);
      store_qkv(c, task, tile, r, y[r]);
    }
  }
}

void add_rmsnorm(const StepContext& c, const TaskDescriptor& task) {
  const ModelShape& model = *c.model;
  StepBuffers& b = *c.buffers;
  const bool final = task.flags & kFlagFinal;
  const WeightKind kind =
      final ? WeightKind::kFinalNorm
            : (task.flags & kFlagFfnNorm ? WeightKind::kNormFfn : WeightKind::kNormAttn);
  const float* weight = c.vector(final ? model.n_layers : task.layer, kind);
  for (int row = task.tile_begin; row < task.tile_begin + task.tile_count; ++row) {
    const size_t begin = static_cast<size_t>(row) * static_cast<size_t>(model.hidden);
    float* x = b.residual.data() + begin;
    const float* attn = b.o_out.data() + begin;
    const float* ffn = b.ffn_out.data() + begin;
    for (int i = 0; i < model.hidden && task.flags & kFlagAddAttn; ++i) x[i] += attn[i];
    for (int i = 0; i < model.hidden && task.flags & kFlagAddFfn; ++i) x[i] += ffn[i];
    normalise(c, weight, x, b.normed.data() + begin);
  }
}

void ffn_upgate_act(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  const float* x = task_input(
      c, task, model.parallel_block ? WeightKind::kNormAttn : WeightKind::kNormFfn, scratch);
  const int begin = task.tile_begin * kUnitsPerUpGateTile, R = c.n_rows();
  const int units = std::min(task.tile_count * kUnitsPerUpGateTile,
                             model.layers[static_cast<size_t>(task.layer)].intermediate - begin);
  scratch.output.resize(static_cast<size_t>(2 * R * units));
  float* gate = scratch.output.data();
  float* up = gate + static_cast<ptrdiff_t>(R) * units;
  project(c, scratch.packs, model.weight(task.layer, WeightKind::kGate), 0, begin, units, x,
          model.hidden, R, gate, units);
  project(c, scratch.packs, model.weight(task.layer, WeightKind::kUp), 0, begin, units, x,
          model.hidden, R, up, units);
  for (int r = 0; r < R; ++r) {
    float* out =
        c.buffers->ffn_hidden.data() + static_cast<int64_t>(r) * c.buffers->max_ffn + begin;
    c.kernels->silu_mul(gate + static_cast<ptrdiff_t>(r) * units,
                        up + static_cast<ptrdiff_t>(r) * units, units, 1.f, out);
  }
}

void ffn_down(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  StepBuffers& b = *c.buffers;
  const int begin = task.tile_begin * kTileRows, R = c.n_rows();
  const int n = std::min(task.tile_count * kTileRows, model.hidden - begin);
  const Weight& weight = model.weight(task.layer, WeightKind::kDown);
  if (!(task.flags & kFlagAddResidual)) {
    return project(c, scratch.packs, weight, 0, begin, n, b.ffn_hidden.data(), b.max_ffn, R,
                   b.ffn_out.data() + begin, model.hidden);
  }
  scratch.output.resize(static_cast<size_t>(R * n));
  project(c, scratch.packs, weight, 0, begin, n, b.ffn_hidden.data(), b.max_ffn, R,
          scratch.output.data(), n);
  for (int r = 0; r < R; ++r) {
    const int64_t at = static_cast<int64_t>(r) * model.hidden + begin;
    for (int i = 0; i < n; ++i) {
      b.residual.data()[at + i] = b.residual.data()[at + i] + b.o_out.data()[at + i] +
                                  scratch.output[static_cast<size_t>(r * n + i)];
    }
  }
}

// O_PROJ, ROUTER_GEMM and LM_HEAD: output rows straight into a buffer of `width` columns.
void plain_gemm(const StepContext& c, const TaskDescriptor& task, PackCache& packs,
                const Weight& weight, const float* x, int64_t x_stride, float* out, int width) {
  const int begin = task.tile_begin * kTileRows;
  const int n = std::min(task.tile_count * kTileRows, width - begin);
  project(c, packs, weight, 0, begin, n, x, x_stride, c.n_rows(), out + begin, width);
}

void lm_head(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  float* logits = c.buffers->logits.data();
  const float* x = task_input(c, task, WeightKind::kFinalNorm, scratch);
  plain_gemm(c, task, scratch.packs, model.weight(model.n_layers, WeightKind::kLmHead), x,
             model.hidden, logits, model.vocab);
  if (model.logit_scale == 1.f) return;
  const int begin = task.tile_begin * kTileRows;
  const int end = std::min(begin + task.tile_count * kTileRows, model.vocab);
  for (int64_t r = 0; r < c.n_rows(); ++r) {
    for (int i = begin; i < end; ++i) logits[r * model.vocab + i] *= model.logit_scale;
  }
}

void router_topk_rows(const StepContext& c, const TaskDescriptor& task) {
  const ModelShape& model = *c.model;
  for (int row = task.tile_begin; row < task.tile_begin + task.tile_count; ++row) {
    router_topk(c, c.buffers->router_logits.data() + static_cast<ptrdiff_t>(row) * model.n_experts,
                c.buffers->topk_ids.data() + static_cast<ptrdiff_t>(row) * model.top_k,
                c.buffers->topk_weights.data() + static_cast<ptrdiff_t>(row) * model.top_k);
  }
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

const char* opcode_name(int32_t opcode) {
  return opcode >= 0 && opcode < kNumOpcodes ? kOpcodeNames[opcode] : "unknown opcode";
}

void store_cache(uint8_t* base, WeightFormat format, int64_t index, const float* values, int n) {
  if (format == WeightFormat::kF32) {
    std::memcpy(base + index * 4, values, static_cast<size_t>(n) * 4);
    return;
  }
  auto* out = reinterpret_cast<uint16_t*>(base) + index;
  for (int i = 0; i < n; ++i) {
    out[i] = format == WeightFormat::kBf16
                 ? to_bf16(values[i])
                 : std::bit_cast<uint16_t>(static_cast<_Float16>(values[i]));
  }
}

const uint8_t* PackCache::get(const DotTable& kernels, WeightFormat format, const float* x,
                              int64_t stride, int n_rows, int cols) {
  const auto f = static_cast<size_t>(format);
  if (kernels.pack[f] == nullptr) return nullptr;
  const Key key{x, n_rows, cols};
  if (keys_[f] == key) return data_[f].data();
  const auto row_bytes = static_cast<size_t>(kernels.packed_bytes(cols));
  if (data_[f].size() < row_bytes * static_cast<size_t>(n_rows)) {
    data_[f] = AlignedArray<uint8_t>(row_bytes * static_cast<size_t>(n_rows));
  }
  for (int r = 0; r < n_rows; ++r)
    kernels.pack[f](x + r * stride, cols, data_[f].data() + static_cast<size_t>(r) * row_bytes);
  keys_[f] = key;
  return data_[f].data();
}

void project(const StepContext& c, PackCache& packs, const Weight& weight, int index, int row_begin,
             int n_weights, const float* x, int64_t x_stride, int n_rows, float* y,
             int64_t y_stride) {
  const auto* matrix = static_cast<const uint8_t*>(weight.data) + index * weight.matrix_bytes;
  DotJob job;
  job.weights = matrix + row_begin * weight.row_bytes;
  job.row_bytes = weight.row_bytes;
  job.n_weights = n_weights;
  job.cols = weight.cols;
  job.n_rows = n_rows;
  job.x = x;
  job.x_stride = x_stride;
  job.packed = packs.get(*c.kernels, weight.format, x, x_stride, n_rows, weight.cols);
  job.y = y;
  job.y_stride = y_stride;
  c.kernels->dot[static_cast<int>(weight.format)](job);
}

void normalise(const StepContext& c, const float* weight, const float* x, float* out) {
  const int n = c.model->hidden;
  float mean = 0.f;
  if (c.model->layer_norm) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += x[i];
    mean = static_cast<float>(sum / n);
  }
  for (int i = 0; i < n; ++i) out[i] = x[i] - mean;
  float square_sum = 0.f;
  c.kernels->dot[0](
      {reinterpret_cast<const uint8_t*>(out), 0, 1, n, 1, out, 0, nullptr, &square_sum, 0});
  const float scale = 1.f / std::sqrt(square_sum / static_cast<float>(n) + c.model->eps);
  for (int i = 0; i < n; ++i) out[i] = out[i] * scale * weight[i];
}

const float* task_input(const StepContext& c, const TaskDescriptor& task, WeightKind norm,
                        WorkerScratch& scratch) {
  if (!(task.flags & kFlagFusedNorm)) return c.buffers->normed.data();
  const ModelShape& model = *c.model;
  const float* weight =
      c.vector(norm == WeightKind::kFinalNorm ? model.n_layers : task.layer, norm);
  scratch.input.resize(static_cast<size_t>(c.n_rows() * model.hidden));
  for (int64_t r = 0; r < c.n_rows(); ++r) {
    normalise(c, weight, c.buffers->residual.data() + r * model.hidden,
              scratch.input.data() + r * model.hidden);
  }
  return scratch.input.data();
}

void run_task(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  StepBuffers& b = *c.buffers;
  scratch.packs.forget();
  switch (static_cast<Opcode>(task.opcode)) {
    case Opcode::kAddRmsNorm:
      return add_rmsnorm(c, task);
    case Opcode::kQkvProj:
      return qkv_proj(c, task, scratch);
    case Opcode::kAttnDecode:
    case Opcode::kAttnDrain:
      return attention_task(c, task, scratch);
    case Opcode::kAttnCombine:
      return attention_combine(c, task);
    case Opcode::kOProj:
      return plain_gemm(c, task, scratch.packs, model.weight(task.layer, WeightKind::kO),
                        b.attn.data(), static_cast<int64_t>(model.n_heads) * model.head_dim,
                        b.o_out.data(), model.hidden);
    case Opcode::kFfnUpGateAct:
      return ffn_upgate_act(c, task, scratch);
    case Opcode::kFfnDown:
      return ffn_down(c, task, scratch);
    case Opcode::kRouterGemm: {
      const float* x = task_input(
          c, task, model.parallel_block ? WeightKind::kNormAttn : WeightKind::kNormFfn, scratch);
      return plain_gemm(c, task, scratch.packs, model.weight(task.layer, WeightKind::kRouter), x,
                        model.hidden, b.router_logits.data(), model.n_experts);
    }
    case Opcode::kRouterTopK:
      return router_topk_rows(c, task);
    case Opcode::kRouteFinalize:
      return build_route(c, b.topk_ids.data(), b.topk_weights.data(), b.route);
    case Opcode::kMoeGather:
    case Opcode::kMoeUpGateActDrain:
    case Opcode::kMoeDownDrain:
    case Opcode::kMoeCombine:
      return moe_task(c, task, scratch);
    case Opcode::kLmHead:
      return lm_head(c, task, scratch);
  }
  fail(join_text("unknown opcode ", task.opcode));
}

}  // namespace pointcode
