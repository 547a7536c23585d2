// The mixture of experts: routing, gather, expert GEMMs, combine.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpu_ops.h"

namespace pointcode {
namespace {

constexpr int kUnits = kTileRows / 2;  // hidden units of an up/gate tile

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The route of this step: the shared one, or with FUSED_TOPK the task's own copy of it.
const Route& task_route(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  if (!(task.flags & kFlagFusedTopK)) return c.buffers->route;
  const ModelShape& model = *c.model;
  scratch.topk_ids.resize(static_cast<size_t>(c.n_rows() * model.top_k));
  scratch.topk_weights.resize(scratch.topk_ids.size());
  for (int row = 0; row < c.n_rows(); ++row) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(row) * model.top_k;
    router_topk(c, c.buffers->router_logits.data() + static_cast<ptrdiff_t>(row) * model.n_experts,
                scratch.topk_ids.data() + at, scratch.topk_weights.data() + at);
  }
  build_route(c, scratch.topk_ids.data(), scratch.topk_weights.data(), scratch.route);
  return scratch.route;
}

float* hidden_of(const StepContext& c, int row, int slot) {
  return c.buffers->moe_hidden.data() +
         (static_cast<int64_t>(row) * c.model->top_k + slot) * c.buffers->max_moe_ffn;
}

// Hidden units [begin, begin + units) of the u-th expert of the union, for all its pairs; x is
// (pairs, D).
void upgate_expert(const StepContext& c, int layer, const Route& route, int u, int begin, int units,
                   const float* x, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  const int first = route.first_pair[static_cast<size_t>(u)],
            n = route.first_pair[static_cast<size_t>(u) + 1] - first;
  const int expert = route.expert[static_cast<size_t>(u)];
  scratch.output.resize(static_cast<size_t>(2 * n * units));
  float* gate = scratch.output.data();
  float* up = gate + static_cast<ptrdiff_t>(n) * units;
  project(c, scratch.packs, model.weight(layer, WeightKind::kExpertGate), expert, begin, units, x,
          model.hidden, n, gate, units);
  project(c, scratch.packs, model.weight(layer, WeightKind::kExpertUp), expert, begin, units, x,
          model.hidden, n, up, units);
  for (int i = 0; i < n; ++i) {
    const auto pair = static_cast<size_t>(first + i);
    float* out = hidden_of(c, route.pair_row[pair], route.pair_slot[pair]) + begin;
    c.kernels->silu_mul(gate + static_cast<ptrdiff_t>(i) * units,
                        up + static_cast<ptrdiff_t>(i) * units, units, route.pair_weight[pair],
                        out);
  }
}

void upgate_claimed(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const Route& route = task_route(c, task, scratch);
  const int F = c.model->layers[static_cast<size_t>(task.layer)].intermediate;
  const int n_blocks = ceil_div(F / kUnits, kMoeBlockTiles);
  // relaxed: the queue only deals out numbers; what the items read was acquired by the task's waits
  auto& queue = c.queues[task.queue].value;
  for (int item;
       (item = queue.fetch_add(1, std::memory_order_relaxed)) < route.n_union * n_blocks;) {
    const int u = item / n_blocks, begin = item % n_blocks * kMoeBlockTiles * kUnits;
    const float* x =
        c.buffers->moe_in.data() +
        static_cast<int64_t>(route.first_pair[static_cast<size_t>(u)]) * c.model->hidden;
    upgate_expert(c, task.layer, route, u, begin, std::min(kMoeBlockTiles * kUnits, F - begin), x,
                  scratch);
  }
}

// Items [item, end) of union x tiles; `rows` is the normed input (R, D).
void upgate_items(const StepContext& c, const TaskDescriptor& task, const Route& route,
                  const float* rows, int item, int end, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  const int tiles = model.layers[static_cast<size_t>(task.layer)].intermediate / kUnits;
  std::vector<float>& x = scratch.gathered;
  while (item < end) {
    const int u = item / tiles, tile = item % tiles;
    const int n_tiles = std::min(tiles - tile, end - item);
    const int first = route.first_pair[static_cast<size_t>(u)],
              n = route.first_pair[static_cast<size_t>(u) + 1] - first;
    x.resize(static_cast<size_t>(n * model.hidden));
    scratch.packs.forget();
    for (int i = 0; i < n; ++i) {
      const auto row = static_cast<int64_t>(route.pair_row[static_cast<size_t>(first + i)]);
      std::copy_n(rows + row * model.hidden, model.hidden,
                  x.data() + static_cast<ptrdiff_t>(i) * model.hidden);
    }
    upgate_expert(c, task.layer, route, u, tile * kUnits, n_tiles * kUnits, x.data(), scratch);
    item += n_tiles;
  }
}

// The task's slice, then claims of one item each.
void upgate_sliced(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  const Route& route = task_route(c, task, scratch);
  const float* rows = task_input(
      c, task, model.parallel_block ? WeightKind::kNormAttn : WeightKind::kNormFfn, scratch);
  const int tiles = model.layers[static_cast<size_t>(task.layer)].intermediate / kUnits;
  const int64_t items = static_cast<int64_t>(route.n_union) * tiles;
  const auto border = [&](int32_t part) { return static_cast<int>(items * part / 65536); };
  upgate_items(c, task, route, rows, border(task.slice_lo), border(task.slice_hi), scratch);
  if (task.queue == kNone) return;
  auto& queue = c.queues[task.queue].value;  // relaxed as in upgate_claimed
  const int64_t begin = border(task.claim_begin);
  for (int64_t item; (item = begin + queue.fetch_add(1, std::memory_order_relaxed)) < items;)
    upgate_items(c, task, route, rows, static_cast<int>(item), static_cast<int>(item) + 1, scratch);
}

// Rows [begin, begin + n) of the down projection of the u-th expert for all its pairs; returns
// (pairs, n).
const float* down_expert(const StepContext& c, int layer, const Route& route, int u, int begin,
                         int n, WorkerScratch& scratch) {
  const int F = c.model->layers[static_cast<size_t>(layer)].intermediate;
  const int first = route.first_pair[static_cast<size_t>(u)],
            pairs = route.first_pair[static_cast<size_t>(u) + 1] - first;
  scratch.gathered.resize(static_cast<size_t>(pairs * F));
  scratch.packs.forget();
  for (int i = 0; i < pairs; ++i) {
    const auto pair = static_cast<size_t>(first + i);
    const float* hidden = hidden_of(c, route.pair_row[pair], route.pair_slot[pair]);
    std::copy(hidden, hidden + F, scratch.gathered.data() + static_cast<ptrdiff_t>(i) * F);
  }
  scratch.output.resize(static_cast<size_t>(pairs * n));
  project(c, scratch.packs, c.model->weight(layer, WeightKind::kExpertDown),
          route.expert[static_cast<size_t>(u)], begin, n, scratch.gathered.data(), F, pairs,
          scratch.output.data(), n);
  return scratch.output.data();
}

void down_claimed(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  const Route& route = task_route(c, task, scratch);
  constexpr int kRows = kMoeBlockTiles * kTileRows;
  const int n_blocks = ceil_div(model.hidden, kRows);
  auto& queue = c.queues[task.queue].value;  // relaxed as in upgate_claimed
  for (int item;
       (item = queue.fetch_add(1, std::memory_order_relaxed)) < route.n_union * n_blocks;) {
    const int u = item / n_blocks, begin = item % n_blocks * kRows,
              n = std::min(kRows, model.hidden - begin);
    const float* y = down_expert(c, task.layer, route, u, begin, n, scratch);
    for (int pair = route.first_pair[static_cast<size_t>(u)];
         pair < route.first_pair[static_cast<size_t>(u) + 1]; ++pair, y += n) {
      const int64_t slot =
          static_cast<int64_t>(route.pair_row[static_cast<size_t>(pair)]) * model.top_k +
          route.pair_slot[static_cast<size_t>(pair)];
      std::copy(y, y + n, c.buffers->moe_out.data() + slot * model.hidden + begin);
    }
  }
}

void down_sliced(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  StepBuffers& b = *c.buffers;
  const Route& route = task_route(c, task, scratch);
  const int begin = task.tile_begin * kTileRows,
            n = std::min(task.tile_count * kTileRows, model.hidden - begin);
  std::vector<float>& sums = scratch.sums;
  sums.assign(static_cast<size_t>(c.n_rows() * n), 0.f);
  for (int u = 0; u < route.n_union; ++u) {
    const float* y = down_expert(c, task.layer, route, u, begin, n, scratch);
    for (int pair = route.first_pair[static_cast<size_t>(u)];
         pair < route.first_pair[static_cast<size_t>(u) + 1]; ++pair, y += n) {
      float* sum =
          sums.data() + static_cast<ptrdiff_t>(route.pair_row[static_cast<size_t>(pair)]) * n;
      for (int i = 0; i < n; ++i) sum[i] += y[i];
    }
  }
  for (int64_t r = 0; r < c.n_rows(); ++r) {
    const float* sum = sums.data() + r * n;
    const int64_t at = r * model.hidden + begin;
    if (!(task.flags & kFlagAddResidual)) {
      std::copy(sum, sum + n, b.ffn_out.data() + at);
      continue;
    }
    for (int i = 0; i < n; ++i)
      b.residual.data()[at + i] = b.residual.data()[at + i] + b.o_out.data()[at + i] + sum[i];
  }
}

void gather(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const Route& route = task_route(c, task, scratch);
  const int64_t D = c.model->hidden;
  for (int pair = task.tile_begin; pair < task.tile_begin + task.tile_count; ++pair) {
    const float* row = c.buffers->normed.data() + route.pair_row[static_cast<size_t>(pair)] * D;
    std::copy(row, row + D, c.buffers->moe_in.data() + pair * D);
  }
}

void combine(const StepContext& c, const TaskDescriptor& task) {
  const ModelShape& model = *c.model;
  const int64_t D = model.hidden;
  const int64_t begin = D * task.split / task.n_splits, end = D * (task.split + 1) / task.n_splits;
  for (int row = task.tile_begin; row < task.tile_begin + task.tile_count; ++row) {
    float* out = c.buffers->ffn_out.data() + row * D;
    const float* in = c.buffers->moe_out.data() + row * model.top_k * D;
    std::fill(out + begin, out + end, 0.f);
    for (int slot = 0; slot < model.top_k; ++slot) {
      for (int64_t i = begin; i < end; ++i) out[i] += in[slot * D + i];
    }
  }
}

}  // namespace

void router_topk(const StepContext& c, const float* logits, int32_t* ids, float* weights) {
  const ModelShape& model = *c.model;
  std::vector<int32_t> order(static_cast<size_t>(model.n_experts));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + model.top_k, order.end(),
                    [logits](int32_t a, int32_t b) {
                      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
                    });
  const float top = logits[order[0]];
  std::copy_n(order.begin(), model.top_k, ids);
  std::sort(ids, ids + model.top_k);
  float denominator = 1.f;
  if (model.softmax_router) {
    denominator = 0.f;
    for (int e = 0; e < model.n_experts; ++e) denominator += std::exp(logits[e] - top);
  }
  float total = 0.f;
  for (int t = 0; t < model.top_k; ++t) {
    const float logit = logits[ids[t]];
    weights[t] =
        model.softmax_router ? std::exp(logit - top) / denominator : 1.f / (1.f + std::exp(-logit));
    total += weights[t];
  }
  for (int t = 0; t < model.top_k && model.norm_topk; ++t) weights[t] /= total;
}

void build_route(const StepContext& c, const int32_t* ids, const float* weights, Route& route) {
  const ModelShape& model = *c.model;
  const int n_pairs = c.n_rows() * model.top_k;
  std::vector<int32_t> order(static_cast<size_t>(n_pairs));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [ids](int32_t a, int32_t b) { return ids[a] < ids[b]; });
  route.expert.clear();
  route.first_pair.clear();
  route.pair_row.resize(order.size());
  route.pair_slot.resize(order.size());
  route.pair_weight.resize(order.size());
  for (int i = 0; i < n_pairs; ++i) {
    const int32_t pair = order[static_cast<size_t>(i)];
    if (i == 0 || ids[pair] != route.expert.back()) {
      route.expert.push_back(ids[pair]);
      route.first_pair.push_back(i);
    }
    route.pair_row[static_cast<size_t>(i)] = pair / model.top_k;
    route.pair_slot[static_cast<size_t>(i)] = pair % model.top_k;
    route.pair_weight[static_cast<size_t>(i)] = weights[pair];
  }
  route.first_pair.push_back(n_pairs);
  route.n_union = static_cast<int32_t>(route.expert.size());
}

void moe_task(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  const bool sliced = task.flags & kFlagSliced;
  switch (static_cast<Opcode>(task.opcode)) {
    case Opcode::kMoeGather:
      return gather(c, task, scratch);
    case Opcode::kMoeUpGateActDrain:
      return sliced ? upgate_sliced(c, task, scratch) : upgate_claimed(c, task, scratch);
    case Opcode::kMoeDownDrain:
      return sliced ? down_sliced(c, task, scratch) : down_claimed(c, task, scratch);
    default:
      return combine(c, task);
  }
}

}  // namespace pointcode
