// Producer and storer of the published orders: claims, weights and pages in; results out, and the signal.
#pragma once

#include "mk_counted.cuh"
#include "mk_producer.cuh"
#include "mk_storer.cuh"

namespace pointcode::mk {

template <int NB>
struct CountedProducer : Producer<NB, (NB > 1)> {
  using Base = Producer<NB, (NB > 1)>;
  using Base::ordinal;
  using Base::p;
  using Base::push_item;
  using Base::stage;
  int routed = -1;

  // The next number of a task's queue, the same in all lanes. Claimed when the work before is on its way, not earlier: an
  // SM that holds two of few items while another has none is slower than a claim's latency.
  __device__ __forceinline__ int claim(const TaskDescriptor& d) const {
    uint32_t next = 0;
    if ((threadIdx.x & 31) == 0)
      next = atomicAdd(p.queues + (p.step & 1) * p.n_queues + d.queue, 1u);
    return static_cast<int>(__shfl_sync(~0u, next, 0));
  }

  // ATTN_DRAIN: items (row, KV head, split). The pages of the split follow the item.
  __device__ __forceinline__ void drain_pages(const TaskDescriptor& d, const Layer& layer) {
    const bool sliding = layer.flags & kLayerSliding;
    const uint32_t bytes = kPageTokens * p.head_dim * 2;
    const int items = p.n_rows * p.n_kv_heads * d.n_splits;
    this->set_limit(bytes);
#pragma unroll 1
    for (int item; (item = claim(d)) < items;) {
      const int split = item % d.n_splits, group = item / d.n_splits % p.n_kv_heads;
      const int row = item / d.n_splits / p.n_kv_heads;
      const PageRange range = page_range<NB>(p, row, sliding, split);
      const int32_t* table = page_table(p, sliding, row);
      push_item(item);
#pragma unroll 1
      for (int page = range.begin; page < range.end; page++) {
        const size_t offset = (static_cast<size_t>(table[page]) * p.n_kv_heads + group) * bytes;
        stage(layer.k + offset, bytes);
        stage(layer.v + offset, bytes);
      }
    }
    push_item(kNoItem);
  }

  // MOE_UPGATE_ACT_DRAIN, MOE_DOWN_DRAIN: items are blocks of kMoeBlockTiles tiles of one expert of the union.
  __device__ __forceinline__ void drain_weights(const TaskDescriptor& d, const Layer& layer) {
    const Route& route = smem<NB>().f.route[d.layer & 1];
    const bool up = d.opcode == static_cast<int>(Opcode::kMoeUpGateActDrain);
    const uint8_t* bank = up ? layer.upgate : layer.down;
    const PackPlan plan = PackPlan::of(up ? p.hidden : layer.intermediate);
    const int tiles = up ? layer.intermediate / 8 : p.hidden / 16;
    const int blocks = (tiles + kMoeBlockTiles - 1) / kMoeBlockTiles,
              items = route.n_experts * blocks;
    const uint32_t bytes = plan.stage_bytes();
    this->set_limit(bytes);
#pragma unroll 1
    for (int item; (item = claim(d)) < items;) {
      const int u = item / blocks, first = item % blocks * kMoeBlockTiles;
      const int last = min(first + kMoeBlockTiles, tiles);
      const uint8_t* src =
          bank + (static_cast<size_t>(route.entry[u].expert) * tiles + first) * plan.tile_bytes();
#pragma unroll 1
      for (int tile = first; tile < last; tile++) {
        push_item(u * tiles + tile);
#pragma unroll 1
        for (int j = 0; j < plan.stages; j++, src += bytes) stage(src, bytes);
      }
    }
    push_item(kNoItem);
  }

  __device__ __forceinline__ void loop(int n_tasks) {
    DescriptorReader<NB> reader;
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open(p);
      ordinal = d.ordinal;
      const Layer& layer = p.layers[d.layer < p.n_layers ? d.layer : 0];
      switch (static_cast<Opcode>(d.opcode)) {
        case Opcode::kAddRmsNorm:
        case Opcode::kAttnCombine:
        case Opcode::kRouterTopK:
        case Opcode::kRouteFinalize:
        case Opcode::kMoeGather:
        case Opcode::kMoeCombine:
          break;
        case Opcode::kAttnDecode:
          this->pages(d, layer);
          break;
        case Opcode::kAttnDrain:
          drain_pages(d, layer);
          break;
        case Opcode::kMoeUpGateActDrain:
        case Opcode::kMoeDownDrain:
          if (routed != d.layer) fetch_route<NB>(p, ordinal, d.layer), routed = d.layer;
          drain_weights(d, layer);
          break;
        default:
          this->weights(d, layer);
      }
      reader.close();
    }
  }
};

template <int NB>
struct CountedStorer : Storer<NB> {
  using Base = Storer<NB>;
  using Base::kPer;
  using Base::lane;
  using Base::ordinal;
  using Base::out_row;
  using Base::p;
  using Base::v;

  // One output of one batch row.
  __device__ __forceinline__ void store(const TaskDescriptor& d, int item, int row, bool live,
                                        float x) {
    const uint32_t tag = tag_of(p, d.layer);
    const int at = item * 16 + out_row();
    switch (static_cast<Opcode>(d.opcode)) {
      case Opcode::kRouterGemm:  // the last tile may be padded
        if (live && at < p.n_experts) put(p.router, row * p.n_experts + at, x, tag);
        break;
      case Opcode::kLmHead:
        if (live && at < p.vocab) this->store_logit(row, at, x * p.logit_scale);
        break;
      case Opcode::kMoeDownDrain: {
        const Route& route = smem<NB>().f.route[d.layer & 1];
        const int tiles = p.hidden / 16, tile = item % tiles;
        const RouteEntry e = route.entry[item / tiles];
        if (!live || (e.rows >> row & 1) == 0) break;
        const int pair = route.pair[e.begin + __popc(e.rows & ((1u << row) - 1))];
        put(p.moe_out, pair * p.hidden + tile * 16 + out_row(), x, tag);
        break;
      }
      default:
        if (live)
          put(d.opcode == static_cast<int>(Opcode::kOProj) ? p.o_out : p.ffn_out,
              row * p.hidden + at, x, tag);
    }
  }

  __device__ __forceinline__ void task(const TaskDescriptor& d) {
    const Opcode op = static_cast<Opcode>(d.opcode);
    const Layer& layer = p.layers[d.layer < p.n_layers ? d.layer : 0];
    const bool up = op == Opcode::kMoeUpGateActDrain, claimed = up || op == Opcode::kMoeDownDrain;
    const int last = claimed ? INT_MAX : d.tile_begin + d.tile_count, parts = this->parts(d, layer);
#pragma unroll 1
    for (int tile = d.tile_begin; tile < last; tile++) {
      const int taken = this->take(parts), item = claimed ? taken : tile;
      if (item == kNoItem) break;
      if (up || op == Opcode::kFfnUpGateAct) {
        this->upgate(d, layer.intermediate, up ? &smem<NB>().f.route[d.layer & 1] : nullptr, item);
        continue;
      }
      if (op == Opcode::kQkvProj) {
        this->qkv(d, layer, tile);
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < kPer; i++) {
        const float x = v[0];
#pragma unroll
        for (int j = 1; j < kPer; j++) v[j - 1] = v[j];
        const int row = this->first_row() + i;
        store(d, item, row, (NB == 8 || lane() < 16) && row < p.n_rows, x);
      }
    }
    signal(p, d);
  }

  __device__ __forceinline__ void loop(int n_tasks) {
    DescriptorReader<NB> reader;
    this->embed();
    begin_leaders<NB>(p);
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open(p);
      ordinal = d.ordinal;
      switch (static_cast<Opcode>(d.opcode)) {
        case Opcode::kQkvProj:
        case Opcode::kOProj:
        case Opcode::kFfnUpGateAct:
        case Opcode::kFfnDown:
        case Opcode::kRouterGemm:
        case Opcode::kMoeUpGateActDrain:
        case Opcode::kMoeDownDrain:
        case Opcode::kLmHead:
          task(d);
          break;
        default:
          break;
      }
      reader.close();
    }
    publish_leaders<NB>(p);
  }
};

}  // namespace pointcode::mk
