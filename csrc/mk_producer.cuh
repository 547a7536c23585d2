// Producer warp: walks the descriptors ahead of everybody and streams weights and KV pages into the ring.
// It waits for nothing but free stages, and for the router's logits where an expert's address depends on them.
#pragma once

#include "mk_route.cuh"

namespace pointcode::mk {

template <int NB>
struct Producer {
  Smem<NB>& s;
  const Params& p;
  RingPos<Smem<NB>::kStages> pos{}, landed{};
  uint32_t issued = 0;

  __device__ __forceinline__ void stage(const Where& at, const uint8_t* src, uint32_t bytes) {
    if (issued >= Smem<NB>::kStages) mbar_wait(at, &s.ring_empty[pos.slot], pos.phase ^ 1, WaitKind::kRingEmpty);
    if (issued >= kInFlight) {
      mbar_wait(at, &s.ring_full[landed.slot], landed.phase, WaitKind::kRingFull);
      landed.next();
    }
    if ((threadIdx.x & 31) == 0) {
      mbar_expect(&s.ring_full[pos.slot], bytes);
      bulk_load(s.ring[pos.slot], src, bytes, &s.ring_full[pos.slot]);
    }
    __syncwarp();
    pos.next();
    issued++;
  }

  // A run of tiles of one matrix: stages lie one after the other in memory.
  __device__ __forceinline__ void run(const Where& at, const uint8_t* src, int n_stages, int bytes) {
#pragma unroll 1
    for (int i = 0; i < n_stages; i++) stage(at, src + static_cast<size_t>(i) * bytes, bytes);
  }

  __device__ __forceinline__ void tiles(const Where& at, const TaskDescriptor& d, const uint8_t* base, int k) {
    const PackPlan plan = PackPlan::of(k);
    run(at, base + static_cast<size_t>(d.tile_begin) * plan.tile_bytes(), d.tile_count * plan.stages, plan.stage_bytes());
  }

  __device__ __forceinline__ void pages(const Where& at, const TaskDescriptor& d, const Layer& layer) {
    const bool sliding = layer.flags & kLayerSliding;
    const uint32_t bytes = kPageTokens * p.head_dim * 2;
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    for (int r = 0; r < p.n_rows; r++) {
      const PageRange range = page_range(p, r, sliding, d.split);
      const int32_t* table = p.page_table + (static_cast<size_t>(sliding) * kMaxRows + r) * p.max_pages;
      int mine = 0;
#pragma unroll 1
      for (int page = range.begin; page < range.end; page++) {
        const int at_lane = (page - range.begin) & 31;
        if (at_lane == 0 && page + lane < range.end) mine = table[page + lane];
        const int physical = __shfl_sync(~0u, mine, at_lane);
        const size_t offset = (static_cast<size_t>(physical) * p.n_kv_heads + d.tile_begin) * bytes;
        stage(at, layer.k + offset, bytes);
        stage(at, layer.v + offset, bytes);
      }
    }
  }

  __device__ __forceinline__ void expert_upgate(const Where& at, const TaskDescriptor& d, const Layer& layer, const Route& route) {
    const PackPlan plan = PackPlan::of(p.hidden);
    const int tiles = layer.intermediate / 8;
    const int2 items = slice(d, route, tiles);
#pragma unroll 1
    for (int item = items.x; item < items.y; item++) {
      const size_t tile = static_cast<size_t>(route.entry[item / tiles].expert) * tiles + item % tiles;
      run(at, layer.upgate + tile * plan.tile_bytes(), plan.stages, plan.stage_bytes());
    }
  }

  __device__ __forceinline__ void expert_down(const Where& at, const TaskDescriptor& d, const Layer& layer, const Route& route) {
    const PackPlan plan = PackPlan::of(layer.intermediate);
    const int tiles = p.hidden / 16;
#pragma unroll 1
    for (int tile = d.tile_begin; tile < d.tile_begin + d.tile_count; tile++)
#pragma unroll 1
      for (int u = 0; u < route.n_experts; u++) {
        const size_t at_tile = static_cast<size_t>(route.entry[u].expert) * tiles + tile;
        run(at, layer.down + at_tile * plan.tile_bytes(), plan.stages, plan.stage_bytes());
      }
  }

  __device__ void loop(int n_tasks) {
    DescriptorReader<NB> reader{s, {&p}};
    int routed = -1;
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open();
      const Where at = reader.at;
      const Layer& layer = p.layers[d.opcode == static_cast<int>(Opcode::kLmHead) ? 0 : d.layer];
      Route& route = s.f.route[d.layer & 1];
      if ((d.flags & kFlagFusedTopK) && routed != d.layer) {
        make_route<NB>(p, at, d.layer, route);
        routed = d.layer;
        stamp(p, 13, d.layer);
      }
      switch (static_cast<Opcode>(d.opcode)) {
        case Opcode::kRouterGemm: tiles(at, d, layer.router, p.hidden); break;
        case Opcode::kQkvProj: tiles(at, d, layer.qkv, p.hidden); break;
        case Opcode::kAttnDecode: pages(at, d, layer); break;
        case Opcode::kOProj: tiles(at, d, layer.o, p.n_heads * p.head_dim); break;
        case Opcode::kFfnUpGateAct: tiles(at, d, layer.upgate, p.hidden); break;
        case Opcode::kFfnDown: tiles(at, d, layer.down, layer.intermediate); break;
        case Opcode::kMoeUpGateActDrain: expert_upgate(at, d, layer, route); break;
        case Opcode::kMoeDownDrain: expert_down(at, d, layer, route); break;
        case Opcode::kLmHead: tiles(at, d, p.lm_head, p.hidden); break;
        default: break;
      }
      reader.close();
    }
  }
};

// Controller warp: keeps the next descriptors in shared memory. Called by warp 0, one lane, without blocking.
template <int NB>
struct DescriptorFeed {
  Smem<NB>& s;
  const TaskDescriptor* list;
  int n;
  int next = 0;
  // Issues every descriptor whose slot is free; with `needed` it waits until descriptor `needed` is issued.
  __device__ __forceinline__ void refill(const Where& at, int needed) {
#pragma unroll 1
    while (next < n) {
      const int slot = next % kDescSlots;
      if (next >= kDescSlots) {
        const uint32_t parity = ((next / kDescSlots) - 1) & 1;
        if (next <= needed) {
          mbar_wait(at, &s.f.desc_empty[slot], parity, WaitKind::kDescriptor);
        } else if (!__all_sync(~0u, mbar_test_wait(&s.f.desc_empty[slot], parity))) {
          return;
        }
      }
      if ((threadIdx.x & 31) == 0) {
        mbar_expect(&s.f.desc_full[slot], sizeof(TaskDescriptor));
        bulk_load(&s.f.desc[slot], list + next, sizeof(TaskDescriptor), &s.f.desc_full[slot]);
      }
      __syncwarp();
      next++;
    }
  }
};

}  // namespace pointcode::mk
