// Activations that travel through the ring: the attention output before O, hidden units before a down projection.
//
// A "batch" is what one ring stage of activations holds: some rows of a tagged buffer, for the weight stages that follow it.
// The producer copies rows as they are, tags and all; a consumer looks at the tags as it multiplies, so what was copied too
// early is noticed and read again from where it is made. Producer and consumers derive the same batches. A batch is short:
// its rows stay in the ring until its last weights are used, and the producer cannot pass them.
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

constexpr int kBatchStages = 4;  // weight stages of a batch, at most

struct Batch {
  int part, end;              // parts: experts of the union, or 0 for a plain matrix
  int first_stage, n_stages;  // of each part's matrix
  int n;                      // rows, over all parts
  int row;                    // the first one: index into Route::pair for experts

  __device__ __forceinline__ bool whole(int stages) const {
    return first_stage + n_stages == stages;
  }
  __device__ __forceinline__ int n_weights() const { return (end - part) * n_stages; }
  // Bytes from one row to the next: 8 rows' pieces lie in different banks.
  __device__ __forceinline__ int pitch(const PackPlan& plan) const {
    return n_stages * plan.stage_k() * 4 + kSlotPadding / kMaxRows;
  }
};

// Cuts a tile's work into batches.
struct Batches {
  const Route* route;  // null: a plain matrix
  int n_parts, n_rows, stages, fits;  // fits: (row, stage) units in one ring stage
  __device__ __forceinline__ Batches(const Params& p, const Route* r, const PackPlan& plan)
      : route(r),
        n_parts(r ? r->n_experts : 1),
        n_rows(p.n_rows),
        stages(plan.stages),
        fits(kStageBytes / (plan.octets * 512)) {}
  __device__ __forceinline__ int rows(int part) const {
    return route ? __popc(route->entry[part].rows) : n_rows;
  }
  // As many whole parts as fit; of a part that does not fit, as many stages as do.
  __device__ __forceinline__ Batch at(int part, int stage) const {
    Batch b{part, part, stage, stages, 0, route ? route->entry[part].begin : 0};
    if (stage == 0) {
#pragma unroll 1
      while (b.end < n_parts && b.n + rows(b.end) <= kMaxRows &&
             (b.n + rows(b.end)) * stages <= fits && (b.end - part + 1) * stages <= kBatchStages)
        b.n += rows(b.end++);
    }
    if (b.n == 0) {
      b.n = rows(part), b.end = part + 1;
      b.n_stages = min(min(stages - stage, kBatchStages), fits / b.n);
    }
    return b;
  }
  __device__ __forceinline__ int row_id(int index) const {
    return route ? route->pair[index] : index;
  }
};

}  // namespace pointcode::mk
