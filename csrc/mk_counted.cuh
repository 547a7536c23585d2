// Counters, and the small tasks that one spare warp runs: what the published orders need beside the lean one.
//
// A task's reader waits until its counters have reached their targets; its writer adds 1 when the results are visible.
// Results are tagged as in the lean order, so that a counter that was wrong could not let stale data through: it would be
// an expired wait for data, not a wrong token.
//
// Sync sites (producer -> consumer, count, fence, reset):
//   counters[i]    the task's last writer -> the waiting role of each SM   one a task   fence + relaxed add / acquire load;
//                                                     zeroed by block 0 in the step after the next, as the queues are
//   queue[i]       claims of the producer warps                            one a claim  relaxed
//   route          combiner of one SM -> every producer (tagged words), -> its SM through ring.full
// Who does what: producer: claims, weights, pages. Consumers: GEMMs, attention, ADD_RMSNORM, MOE_GATHER, MOE_COMBINE.
// Storer: epilogues. Combiner: ATTN_COMBINE, ROUTER_TOPK, ROUTE_FINALIZE.
#pragma once

#include "mk_combine.cuh"
#include "mk_route.cuh"

namespace pointcode::mk {

static_assert(sizeof(Route) / 4 <= kRouteWords && sizeof(Route) % 4 == 0 && kRouteWords % 2 == 0);
constexpr int kRoutePairs = offsetof(Route, pair) / 4;  // first word of Route::pair
static_assert(offsetof(Route, pair) % 4 == 0);

__device__ __forceinline__ uint32_t* counter_of(const Params& p, int i) {
  return p.counters + (static_cast<size_t>(p.step & 1) * p.n_counters + i) * kCounterWords;
}
// By a whole warp.
__device__ __forceinline__ void wait_counters(const Params& p, const TaskDescriptor& d) {
#pragma unroll 1
  for (int i = 0; i < kMaxWaits; i++) {
    if (d.wait_counter[i] < 0) continue;
    const uint32_t* counter = counter_of(p, d.wait_counter[i]);
    const uint32_t wanted = static_cast<uint32_t>(d.wait_target[i]);
#pragma unroll 1
    for (uint32_t n = 1;; n++) {
      const uint32_t seen = load_acquire(counter);
      if (seen >= wanted) break;
      spin(p, n, d.ordinal, WaitKind::kCounter, seen, wanted);
    }
  }
  __syncwarp();
}
// By a whole warp, after its results and those of the warps that it has synchronised with.
__device__ __forceinline__ void signal(const Params& p, const TaskDescriptor& d) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0 && d.signal >= 0) add_release(counter_of(p, d.signal), 1);
}

// ROUTER_TOPK: a row's experts and weights, slots in ascending id. Lane l holds experts 4 l .. 4 l + 3.
__device__ __forceinline__ void top_k(const Params& p, const TaskDescriptor& d, int row) {
  const int lane = threadIdx.x & 31;
  const uint32_t tag = tag_of(p, d.layer);
  const bool mine = lane * 4 < p.n_experts;
  const uint32_t at = (row * p.n_experts + lane * 4) * 8;
  const uint32_t from[2] = {mine ? at : kNowhere, mine ? at + 16 : kNowhere};
  uint4 raw[2];
  gather<2>(p, d.ordinal, tag, p.router, raw, from);
  uint32_t left[4] = {ordered(__uint_as_float(raw[0].x)), ordered(__uint_as_float(raw[0].z)),
                      ordered(__uint_as_float(raw[1].x)), ordered(__uint_as_float(raw[1].z))};
  const float logit[4] = {__uint_as_float(raw[0].x), __uint_as_float(raw[0].z),
                          __uint_as_float(raw[1].x), __uint_as_float(raw[1].z)};
  uint32_t chosen = 0;
#pragma unroll 1
  for (int k = 0; k < p.top_k; k++) {
    uint32_t best = 0;
    int which = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (mine && left[j] > best) best = left[j], which = j;
    const uint32_t top = __reduce_max_sync(~0u, best);
    const int id = __reduce_min_sync(~0u, best == top && mine ? lane * 4 + which : kMaxExperts);
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (id == lane * 4 + j) chosen |= 1u << j, left[j] = 0;
  }
  float weight[4], sum = 0.f;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    weight[j] = sigmoid(logit[j]);
    if (chosen >> j & 1) sum += weight[j];
  }
  sum = warp_sum(sum);
  int slot = __popc(chosen);  // slots before this lane's
#pragma unroll 1
  for (int k = 1; k < 32; k <<= 1) {
    const int below = __shfl_up_sync(~0u, slot, k);
    if (lane >= k) slot += below;
  }
  slot -= __popc(chosen);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if ((chosen >> j & 1) == 0) continue;
    const int out = (row * p.top_k + slot++) * 2;
    put(p.topk, out, static_cast<uint32_t>(lane * 4 + j), tag);
    put(p.topk, out + 1, p.norm_topk ? weight[j] / sum : weight[j], tag);
  }
}

// ROUTE_FINALIZE: the union of all rows' experts and its pairs, made in shared memory and published word by word.
template <int NB>
__device__ __forceinline__ void finalize(const Params& p, const TaskDescriptor& d) {
  Route& route = smem<NB>().f.route[d.layer & 1];
  const int lane = threadIdx.x & 31, n_pairs = p.n_rows * p.top_k;
  const uint32_t tag = tag_of(p, d.layer);
  const uint32_t from[2] = {lane < n_pairs ? lane * 16u : kNowhere,
                            lane + 32 < n_pairs ? (lane + 32) * 16u : kNowhere};
  uint4 raw[2];  // expert, tag, weight, tag
  gather<2>(p, d.ordinal, tag, p.topk, raw, from);
#pragma unroll
  for (int h = 0; h < 2; h++)
    if (lane + 32 * h < n_pairs) route.weight[lane + 32 * h] = __uint_as_float(raw[h].z);
  Chosen chosen;
#pragma unroll 1
  for (int i = 0; i < n_pairs; i++) {
    const uint32_t low = __shfl_sync(~0u, raw[0].x, i & 31),
                   high = __shfl_sync(~0u, raw[1].x, i & 31);
    const int id = static_cast<int>(i < 32 ? low : high), row = i / p.top_k;
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (id == lane * 4 + j) chosen.add(j, row, i - row * p.top_k);
  }
  list_union(route, chosen, p.top_k);
  const uint32_t* words = reinterpret_cast<const uint32_t*>(&route);
#pragma unroll 1
  for (int i = lane; i < kRouteWords; i += 32)
    put(p.route, i, i < static_cast<int>(sizeof(Route) / 4) ? words[i] : 0u, tag);
}

// The published route into this SM's shared memory; by a whole warp.
template <int NB>
__device__ __forceinline__ void fetch_route(const Params& p, int ordinal, int layer) {
  constexpr int kPieces = (kRouteWords / 2 + 31) / 32;
  uint32_t* words = reinterpret_cast<uint32_t*>(&smem<NB>().f.route[layer & 1]);
  const int lane = threadIdx.x & 31;
  uint4 x[kPieces];
  uint32_t from[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; i++)
    from[i] = lane + 32 * i < kRouteWords / 2 ? (lane + 32 * i) * 16 : kNowhere;
  gather<kPieces>(p, ordinal, tag_of(p, layer), p.route, x, from);
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    const int at = (lane + 32 * i) * 2;
    if (at < static_cast<int>(sizeof(Route) / 4)) words[at] = x[i].x;
    if (at + 1 < static_cast<int>(sizeof(Route) / 4)) words[at + 1] = x[i].z;
  }
  __syncwarp();
}

// Warp 3. True for the opcodes that it runs; everybody else passes them by.
__device__ __forceinline__ bool is_combiners(Opcode op) {
  return op == Opcode::kAttnCombine || op == Opcode::kRouterTopK || op == Opcode::kRouteFinalize;
}
template <int NB>
__device__ __forceinline__ void combiner_loop(const Params& p, int n_tasks) {
  DescriptorReader<NB> reader;
#pragma unroll 1
  while (reader.i < static_cast<uint32_t>(n_tasks)) {
    const TaskDescriptor& d = reader.open(p);
    const Opcode op = static_cast<Opcode>(d.opcode);
    if (is_combiners(op)) {
      const int end = d.tile_begin + d.tile_count;
      wait_counters(p, d);
      if (op == Opcode::kAttnCombine)
        combine_tiles(p, d.ordinal, d.layer, d.tile_begin, end);
      else if (op == Opcode::kRouteFinalize)
        finalize<NB>(p, d);
      else
#pragma unroll 1
        for (int row = d.tile_begin; row < end; row++) top_k(p, d, row);
      signal(p, d);
    }
    reader.close();
  }
}

}  // namespace pointcode::mk
