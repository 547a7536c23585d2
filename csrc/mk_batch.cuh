// Activations that travel through the ring: the attention output before O, hidden units before a down projection.
//
// A "batch" is what one ring stage of activations holds: some rows of a tagged buffer, for the weight stages that follow it.
// The producer copies rows as they are, tags and all; the consumers look at the tags, so a copy that came too early is
// noticed piece by piece and those pieces are read again from global memory. Producer and consumers derive the same batches.
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

struct Batch {
  int part, end;              // parts: experts of the union, or 0 for a plain matrix
  int first_stage, n_stages;  // of each part's matrix
  int n;                      // rows, over all parts
  int row;                    // the first one: index into Route::pair for experts

  __device__ __forceinline__ bool whole(int stages) const {
    return first_stage + n_stages == stages;
  }
};

// Cuts a tile's work into batches.
struct Batches {
  const Route* route;                 // null: a plain matrix
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
      while (b.end < n_parts && (b.n + rows(b.end)) * stages <= fits) b.n += rows(b.end++);
    }
    if (b.n == 0) b.n = rows(part), b.end = part + 1, b.n_stages = min(stages - stage, fits / b.n);
    return b;
  }
  __device__ __forceinline__ int row_id(int index) const {
    return route ? route->pair[index] : index;
  }
};

}  // namespace pointcode::mk
