// Producer warp: walks the descriptors ahead of everybody and streams weights and KV pages into the ring.
// It waits for nothing but free stages, and for the router's logits where an expert's address depends on them.
#pragma once

#include "mk_chain.cuh"
#include "mk_route.cuh"

namespace pointcode::mk {

constexpr int kStagesAhead = 4;  // of the O projection; more were slower (docs/kernel-log.md)

template <int NB, bool kChains>
struct Producer {
  const Params& p;
  RingPos<Smem<NB>::kStages> pos{};
  uint32_t limit = 1;  // stages that may be on their way
  uint32_t n_items = 0;
  int ordinal = -1;

  // Until the kernels before have ended and the rows' table is there. Weights need neither.
  __device__ __forceinline__ void start() const {
    wait_for_earlier_kernels();
    mbar_wait(p, &smem<NB>().f.started, 0, ordinal, WaitKind::kStart);
  }
  // Waits until the next stage is free and few enough are on their way.
  __device__ __forceinline__ void acquire() {
    Smem<NB>& s = smem<NB>();
    // A barrier of a slot that was never used lets the odd phase pass.
    mbar_wait(p, &s.ring_empty[pos.slot], pos.phase ^ 1, ordinal, WaitKind::kRingEmpty);
    await_landed(limit);
    __syncwarp();  // no lane may still look at a phase that the copy will end
  }
  // Waits until all but the last `most` - 1 stages have come. Stages come in order, or nearly so: only the last is looked at.
  __device__ __forceinline__ void await_landed(uint32_t most) const {
    const auto last = pos.behind(most);
    mbar_wait(p, &smem<NB>().ring_full[last.slot], last.phase, ordinal, WaitKind::kRingFull);
  }
  __device__ __forceinline__ void issue() {
    __syncwarp();
    pos.next();
  }
  __device__ __forceinline__ void stage(const uint8_t* src, uint32_t bytes) {
    Smem<NB>& s = smem<NB>();
    acquire();
    if ((threadIdx.x & 31) == 0) {
      s.number[pos.slot] = pos.number;
      mbar_expect(&s.ring_full[pos.slot], bytes);
      bulk_load_once(s.ring[pos.slot], src, bytes, &s.ring_full[pos.slot]);
    }
    issue();
  }
  // Tells the consumers what the next stages hold; kNoItem: the task has no more.
  __device__ __forceinline__ void push_item(int item) {
    Fixed<NB>& f = smem<NB>().f;
    const uint32_t slot = n_items % kItemSlots;
    if (n_items >= kItemSlots)
      mbar_wait(p, &f.item_empty[slot], ((n_items / kItemSlots) - 1) & 1, ordinal, WaitKind::kItem);
    __syncwarp();
    if ((threadIdx.x & 31) == 0) f.item[slot] = item, mbar_arrive(&f.item_full[slot]);
    __syncwarp();
    n_items++;
  }
  __device__ __forceinline__ void set_limit(uint32_t bytes) {
    limit = min(Smem<NB>::kStages - 1u, max(1u, static_cast<uint32_t>(p.in_flight_bytes) / bytes));
  }

  __device__ __forceinline__ void pages(const TaskDescriptor& d, const Layer& layer) {
    const bool sliding = layer.flags & kLayerSliding;
    const uint32_t bytes = kPageTokens * p.head_dim * 2;
    const int lane = threadIdx.x & 31;
    set_limit(bytes);
    const PageRange ranges = page_range<NB>(p, min(lane, p.n_rows - 1), sliding, d.split);
    const uint32_t held = rows_on_held_pages<NB, kChains>(p, ranges);
    const auto look_up = [&](int row, int page, int end) {
      return page < end ? page_table(p, sliding, row)[page] : 0;
    };
    // The first pages of every row at once: a look-up in time would be waited for, row after row. Lane l: row l / kFirst.
    constexpr int kFirst = 32 / NB;
    const int row_here = min(lane / kFirst, p.n_rows - 1);
    const int first = look_up(row_here, __shfl_sync(~0u, ranges.begin, row_here) + lane % kFirst,
                              __shfl_sync(~0u, ranges.end, row_here));
#pragma unroll 1
    for (int r = 0; r < p.n_rows; r++) {
      if (held >> r & 1) continue;
      const int begin = __shfl_sync(~0u, ranges.begin, r), end = __shfl_sync(~0u, ranges.end, r);
      int mine = 0,
          later = look_up(r, begin + kFirst + lane, end);  // 32 pages after the first ones
#pragma unroll 1
      for (int i = 0; i < end - begin; i++) {
        if (i >= kFirst && (i - kFirst) % 32 == 0)
          mine = later, later = look_up(r, begin + i + 32 + lane, end);
        const int physical = i < kFirst ? __shfl_sync(~0u, first, r * kFirst + i)
                                        : __shfl_sync(~0u, mine, (i - kFirst) % 32);
        const size_t offset = (static_cast<size_t>(physical) * p.n_kv_heads + d.tile_begin) * bytes;
        stage(layer.k + offset, bytes);
        stage(layer.v + offset, bytes);
      }
    }
  }

  // A matrix that serves all rows: the tiles of a task follow each other in memory. kFirst: consumers may not have begun, so
  // a full ring waits for the start.
  template <bool kFirst = false>
  __device__ __forceinline__ void weights(const TaskDescriptor& d, const Layer& layer) {
    const uint8_t* base = p.lm_head;
    int k = p.hidden;
    switch (static_cast<Opcode>(d.opcode)) {
      case Opcode::kRouterGemm:
        base = layer.router;
        break;
      case Opcode::kQkvProj:
        base = layer.qkv;
        break;
      case Opcode::kFfnUpGateAct:
        base = layer.upgate;
        break;
      case Opcode::kOProj:
        base = layer.o, k = p.n_heads * p.head_dim;
        break;
      case Opcode::kFfnDown:
        base = layer.down, k = layer.intermediate;
        break;
      default:
        break;
    }
    const PackPlan plan = PackPlan::of(k);
    const uint32_t bytes = plan.stage_bytes();
    const uint8_t* src = base + static_cast<size_t>(d.tile_begin) * plan.tile_bytes();
    set_limit(bytes);
#pragma unroll 1
    for (int i = plan.stages * d.tile_count; i; i--, src += bytes) {
      if (kFirst && pos.number == Smem<NB>::kStages + 1u) start();
      stage(src, bytes);
    }
  }

  // Down projections: each tile of the residual from all experts of the union.
  __device__ __forceinline__ void down(const TaskDescriptor& d, const Layer& layer,
                                       const Route& route) {
    const PackPlan plan = PackPlan::of(layer.intermediate);
    const uint32_t bytes = plan.stage_bytes();
    const size_t expert_bytes = static_cast<size_t>(p.hidden / 16) * plan.tile_bytes();
    set_limit(bytes);
#pragma unroll 1
    for (int i = 0; i < d.tile_count; i++) {
      const uint8_t* tile = layer.down + static_cast<size_t>(d.tile_begin + i) * plan.tile_bytes();
#pragma unroll 1
      for (int u = 0; u < route.n_experts; u++) {
        const uint8_t* src = tile + route.entry[u].expert * expert_bytes;
#pragma unroll 1
        for (int j = 0; j < plan.stages; j++, src += bytes) stage(src, bytes);
      }
    }
  }

  // Gate/up tiles of the union: the task's slice, then one claim after the other; the next claim is under way while a
  // tile is streamed.
  __device__ __forceinline__ void upgate(const TaskDescriptor& d, const Layer& layer,
                                         const Route& route) {
    const PackPlan plan = PackPlan::of(p.hidden);
    const int tiles = layer.intermediate / 8;
    const Slice items = slice(d, route, tiles);
    uint32_t* queue = p.queues + (p.step & 1) * p.n_queues + d.queue;
    const bool claims = d.queue >= 0, leader = (threadIdx.x & 31) == 0;
    const uint32_t bytes = plan.stage_bytes(), tile_bytes = plan.tile_bytes();
    int item = items.first, claimed = 0;
    set_limit(bytes);
    if (claims && leader) claimed = static_cast<int>(atomicAdd(queue, 1u));
#pragma unroll 1
    while (true) {
      if (item >= items.last) {
        item = claims ? items.claim + __shfl_sync(~0u, claimed, 0) : items.items;
        if (item >= items.items) break;
        if (leader) claimed = static_cast<int>(atomicAdd(queue, 1u));
      }
      push_item(item);
      const uint8_t* src =
          layer.upgate +
          (static_cast<size_t>(route.entry[item / tiles].expert) * tiles + item % tiles) *
              tile_bytes;
#pragma unroll 1
      for (int j = 0; j < plan.stages; j++, src += bytes) stage(src, bytes);
      if (++item > items.last) item = items.last;
    }
    push_item(kNoItem);
  }

  // While there is no route the memory has nothing to do: the first weights of the O projection come into the L2.
  __device__ __forceinline__ void look_ahead(const TaskDescriptor& d, const Layer& layer,
                                             uint32_t parity) {
    if (d.ahead_tile < 0) return;
    if (__all_sync(~0u, mbar_test_wait(&smem<NB>().f.route_full, parity))) return;
    const PackPlan plan = PackPlan::of(p.n_heads * p.head_dim);
    const int lane = threadIdx.x & 31;
    await_landed(1);
    if (lane < min(kStagesAhead, plan.stages))
      prefetch_l2(layer.o + static_cast<size_t>(d.ahead_tile) * plan.tile_bytes() +
                      lane * plan.stage_bytes(),
                  plan.stage_bytes());
  }

  // The first weights come before the kernels ahead have ended: what else is read may be theirs.
  __device__ __forceinline__ void begin(DescriptorReader<NB>& reader, int n_tasks) {
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open(p);
      if (d.opcode != static_cast<int>(Opcode::kRouterGemm) &&
          d.opcode != static_cast<int>(Opcode::kQkvProj))
        break;
      ordinal = d.ordinal;
      weights<true>(d, p.layers[d.layer]);
      reader.close();
    }
    start();
  }

  __device__ void loop(int n_tasks) {
    DescriptorReader<NB> reader;
    begin(reader, n_tasks);
    int routed = -1;
    uint32_t routes = 0;
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open(p);
      ordinal = d.ordinal;
      const Layer& layer = p.layers[d.layer < p.n_layers ? d.layer : 0];
      if ((d.flags & kFlagFusedTopK) && routed != d.layer) {
        look_ahead(d, layer, routes & 1);
        mbar_wait(p, &smem<NB>().f.route_full, routes++ & 1, ordinal, WaitKind::kRoute);
        routed = d.layer;
        stamp(p, 13, d.layer);
      }
      const Route& route = smem<NB>().f.route[d.layer & 1];
      if (d.opcode == static_cast<int>(Opcode::kAttnDecode))
        pages(d, layer);
      else if (d.opcode == static_cast<int>(Opcode::kMoeUpGateActDrain))
        upgate(d, layer, route);
      else if (d.opcode == static_cast<int>(Opcode::kMoeDownDrain))
        down(d, layer, route);
      else if (d.opcode != static_cast<int>(Opcode::kAttnCombine))
        weights(d, layer);
      reader.close();
    }
  }
};

// Controller warp: keeps the next descriptors in shared memory. Called by warp 0, one lane, without blocking.
template <int NB>
struct DescriptorFeed {
  const Params& p;
  const TaskDescriptor* list;
  int n;
  int next = 0;
  // Issues every descriptor whose slot is free; with `needed` it waits until descriptor `needed` is issued.
  __device__ __forceinline__ void refill(int needed) {
    Fixed<NB>& f = smem<NB>().f;
#pragma unroll 1
    while (next < n) {
      const int slot = next % kDescSlots;
      if (next >= kDescSlots) {
        const uint32_t parity = ((next / kDescSlots) - 1) & 1;
        if (next <= needed) {
          mbar_wait(p, &f.desc_empty[slot], parity, next, WaitKind::kDescriptor);
        } else if (!__all_sync(~0u, mbar_test_wait(&f.desc_empty[slot], parity))) {
          return;
        }
      }
      if ((threadIdx.x & 31) == 0) {
        mbar_expect(&f.desc_full[slot], sizeof(TaskDescriptor));
        bulk_load(&f.desc[slot], list + next, sizeof(TaskDescriptor), &f.desc_full[slot]);
      }
      __syncwarp();
      next++;
    }
  }
};

}  // namespace pointcode::mk
