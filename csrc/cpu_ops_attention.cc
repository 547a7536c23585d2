// ATTN_DECODE, ATTN_DRAIN and ATTN_COMBINE.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu_ops.h"

namespace pointcode {
namespace {

// Keys that a row sees: positions [first, last].
struct VisibleKeys {
  int first = 0, last = 0;
  int first_page() const { return first / kPageTokens; }
  int n_pages() const { return last / kPageTokens - first_page() + 1; }
};

VisibleKeys visible_keys(const StepContext& c, const TaskDescriptor& task, const BatchRow& row) {
  const int window = task.flags & kFlagSliding ? c.model->window : 0;
  return {window > 0 ? std::max(0, row.position + 1 - window) : 0, row.position};
}

float* partial(const StepContext& c, int row, int head, int split) {
  const ModelShape& model = *c.model;
  const int64_t index =
      (static_cast<int64_t>(row) * model.n_heads + head) * c.buffers->max_splits + split;
  return c.buffers->attn_part.data() + index * (model.head_dim + 2);
}

// One page of keys [begin, end) for the n heads that share a KV head, online softmax: o, m and l of
// each are updated.
void attend_page(const StepContext& c, int layer, int64_t page, int kv_head, int begin, int end,
                 int n, const float* q, float* const* parts, float* scores) {
  const ModelShape& model = *c.model;
  const int C = model.head_dim;
  const auto format = static_cast<int>(c.kv_format);
  const int64_t row_bytes = static_cast<int64_t>(C) * (c.kv_format == WeightFormat::kF32 ? 4 : 2);
  const int64_t offset = ((page * model.n_kv_heads + kv_head) * kPageTokens + begin) * row_bytes;
  const LayerCache& cache = c.caches[static_cast<size_t>(layer)];
  const int n_keys = end - begin;
  c.kernels->dot[format](
      {cache.k + offset, row_bytes, n_keys, C, n, q, C, nullptr, scores, kPageTokens});
  for (int h = 0; h < n; ++h) {
    float* s = scores + h * kPageTokens;
    float *o = parts[h], &m = parts[h][C], &l = parts[h][C + 1];
    float top = m;
    for (int t = 0; t < n_keys; ++t) {
      s[t] *= model.attn_scale;
      top = std::max(top, s[t]);
    }
    const float shrink = std::exp(m - top);
    for (int i = 0; i < C && shrink != 1.f; ++i) o[i] *= shrink;
    l = l * shrink + c.kernels->exp_shifted(s, n_keys, top);
    m = top;
  }
  const int64_t part_stride = static_cast<int64_t>(c.buffers->max_splits) * (C + 2);
  c.kernels->weighted_sum[format](
      {cache.v + offset, row_bytes, n_keys, C, n, scores, kPageTokens, parts[0], part_stride});
}

void attend(const StepContext& c, const TaskDescriptor& task, int row, int kv_head, int split,
            WorkerScratch& scratch) {
  const ModelShape& model = *c.model;
  const BatchRow& batch_row = (*c.rows)[static_cast<size_t>(row)];
  const VisibleKeys keys = visible_keys(c, task, batch_row);
  const int64_t n_pages = keys.n_pages();
  const int page_begin = static_cast<int>(n_pages * split / task.n_splits);
  const int page_end = static_cast<int>(n_pages * (split + 1) / task.n_splits);
  const int group_size = model.n_heads / model.n_kv_heads;
  const int32_t* table = batch_row.pages[task.flags & kFlagSliding ? 1 : 0];
  scratch.scores.resize(kMaxDotRows * kPageTokens);

  for (int first = 0; first < group_size; first += kMaxDotRows) {
    const int n = std::min(kMaxDotRows, group_size - first);
    const int head = kv_head * group_size + first;
    float* parts[kMaxDotRows];
    for (int h = 0; h < n; ++h) {
      parts[h] = partial(c, row, head + h, split);
      std::fill_n(parts[h], model.head_dim, 0.f);
      parts[h][model.head_dim] = -std::numeric_limits<float>::infinity();
      parts[h][model.head_dim + 1] = 0.f;
    }
    const float* q =
        c.buffers->q.data() + (static_cast<int64_t>(row) * model.n_heads + head) * model.head_dim;
    for (int p = keys.first_page() + page_begin; p < keys.first_page() + page_end; ++p) {
      const int begin = std::max(keys.first - p * kPageTokens, 0);
      const int end = std::min(keys.last + 1 - p * kPageTokens, kPageTokens);
      attend_page(c, task.layer, table[p], kv_head, begin, end, n, q, parts, scratch.scores.data());
    }
  }
}

}  // namespace

void attention_task(const StepContext& c, const TaskDescriptor& task, WorkerScratch& scratch) {
  if (task.opcode == static_cast<int32_t>(Opcode::kAttnDecode)) {
    for (int row = 0; row < c.n_rows(); ++row) {
      for (int g = task.tile_begin; g < task.tile_begin + task.tile_count; ++g)
        attend(c, task, row, g, task.split, scratch);
    }
    return;
  }
  const int n_items = c.n_rows() * c.model->n_kv_heads * task.n_splits;
  // relaxed: the queue only deals out numbers; what the items read was acquired by the task's waits
  auto& queue = c.queues[task.queue].value;
  for (int item; (item = queue.fetch_add(1, std::memory_order_relaxed)) < n_items;) {
    const int split = item % task.n_splits, pair = item / task.n_splits;
    attend(c, task, pair / c.model->n_kv_heads, pair % c.model->n_kv_heads, split, scratch);
  }
}

void attention_combine(const StepContext& c, const TaskDescriptor& task) {
  const ModelShape& model = *c.model;
  const int C = model.head_dim;
  const int end = (task.tile_begin + task.tile_count) * kTileRows;
  for (int at = task.tile_begin * kTileRows, stop; at < end;
       at = stop) {  // a run of one head's dims
    const int item = at / C, row = item / model.n_heads, head = item % model.n_heads;
    const int first = at - item * C;
    stop = std::min(end, (item + 1) * C);
    const int n = stop - at;
    float top = -std::numeric_limits<float>::infinity();
    for (int s = 0; s < task.n_splits; ++s) top = std::max(top, partial(c, row, head, s)[C]);
    float* out = c.buffers->attn.data() + at;
    std::fill_n(out, n, 0.f);
    float total = 0.f;
    for (int s = 0; s < task.n_splits; ++s) {
      const float* part = partial(c, row, head, s);
      const float weight = std::exp(part[C] - top);
      total += weight * part[C + 1];
      for (int i = 0; i < n; ++i) out[i] += weight * part[first + i];
    }
    for (int i = 0; i < n; ++i) out[i] /= total;
  }
}

}  // namespace pointcode
