// Storer warp: sums the eight consumer warps' partial tiles, runs the epilogue and hands the result over.
// Lane l holds output row l & 15 of the tile for the batch rows 4 (l >> 4) .. + 3.
#pragma once

#include "mk_route.cuh"

namespace pointcode::mk {

// Byte offsets of element (token, dim) inside one (page, KV head) block; both are mma A-fragment tiles of 16 x 16.
// K: rows are tokens, the reduction runs over dims. V: rows are dims, the reduction runs over tokens.
__device__ __forceinline__ int fragment_offset(int row, int k, int k_tiles) {
  const int tile = (row >> 4) * k_tiles + (k >> 4), rr = row & 15, kk = k & 15;
  return tile * 512 + ((rr & 7) * 4 + ((kk & 7) >> 1)) * 16 + ((rr >> 3) + 2 * (kk >> 3)) * 4 + (kk & 1) * 2;
}

template <int NB>
struct Storer {
  static constexpr int kPer = NB >= 4 ? 4 : NB;
  Smem<NB>& s;
  const Params& p;
  Where at{};
  uint32_t n = 0;          // units taken
  int scaled_layer = -1;   // layer that `scale` belongs to
  float scale[kPer] = {};  // 1 / rms of each batch row, for GEMMs of the residual
  float v[kPer] = {};

  __device__ __forceinline__ int lane() const { return threadIdx.x & 31; }
  __device__ __forceinline__ int out_row() const { return lane() & 15; }
  __device__ __forceinline__ int batch_row(int i) const { return (NB == 8 ? (lane() >> 4) * 4 : 0) + i; }
  __device__ __forceinline__ bool active(int i) const { return (NB == 8 || lane() < 16) && batch_row(i) < p.n_rows; }

  __device__ __forceinline__ void wait_unit() {
    constexpr int kSlots = Fixed<NB>::kRedSlots;
    mbar_wait(at, &s.f.red_full[n % kSlots], (n / kSlots) & 1, WaitKind::kReduceFull);
  }
  __device__ __forceinline__ void take() {
    wait_unit();
    const int b = n % Fixed<NB>::kRedSlots;
#pragma unroll
    for (int i = 0; i < kPer; i++) v[i] = 0.f;
    if (NB == 8 || lane() < 16) {
#pragma unroll
      for (int w = 0; w < kConsumers; w++)
#pragma unroll
        for (int i = 0; i < kPer; i++) v[i] += s.f.red[b][w][out_row()][batch_row(i)];
    }
    __syncwarp();
    if (lane() == 0) mbar_arrive(&s.f.red_empty[b]);
    n++;
  }
  __device__ __forceinline__ void apply_scale(int layer) {
    if (scaled_layer != layer) {
      scaled_layer = layer;
#pragma unroll
      for (int i = 0; i < kPer; i++) {
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < kConsumers; w++) sum += s.f.square_sum[layer & 1][batch_row(i) % NB][w];
        scale[i] = rsqrtf(sum / p.hidden + p.eps);
      }
    }
#pragma unroll
    for (int i = 0; i < kPer; i++) v[i] *= scale[i];
  }

  __device__ void router(const TaskDescriptor& d) {
    const uint32_t tag = tag_of(p, d.layer);
#pragma unroll 1
    for (int tile = d.tile_begin; tile < d.tile_begin + d.tile_count; tile++) {
      take();
      apply_scale(d.layer);
#pragma unroll
      for (int i = 0; i < kPer; i++)
        if (active(i)) put(p.router, batch_row(i) * p.n_experts + tile * 16 + out_row(), v[i], tag);
    }
  }

  __device__ __forceinline__ void store_kv(const Layer& layer, int row, int group, int dim, bool is_value, float x, float next) {
    const int position = p.positions[row], token = position % kPageTokens;
    const int sliding = (layer.flags & kLayerSliding) != 0;
    const int page = p.page_table[(sliding * kMaxRows + row) * p.max_pages + position / kPageTokens];
    const size_t block = (static_cast<size_t>(page) * p.n_kv_heads + group) * (kPageTokens * p.head_dim * 2);
    if (is_value) {
      uint8_t* out = layer.v + block + fragment_offset(dim, token, kPageTokens / 16);
      *reinterpret_cast<__nv_bfloat16*>(out) = __float2bfloat16(x);
    } else if ((dim & 1) == 0) {
      uint8_t* out = layer.k + block + fragment_offset(token, dim, p.head_dim / 16);
      *reinterpret_cast<uint32_t*>(out) = pack_bf16(x, next);
    }
  }

  __device__ void qkv(const TaskDescriptor& d, const Layer& layer) {
    const uint32_t tag = tag_of(p, d.layer);
    const int hd = p.head_dim, group_heads = p.n_heads / p.n_kv_heads, group_tiles = (group_heads + 2) * hd / 16;
#pragma unroll 1
    for (int tile = d.tile_begin; tile < d.tile_begin + d.tile_count; tile++) {
      take();
      apply_scale(d.layer);
      const int group = tile / group_tiles, r = (tile % group_tiles) * 16 + out_row();
      const int q_rows = group_heads * hd, dim = r % hd;
#pragma unroll
      for (int i = 0; i < kPer; i++) {
        float x = v[i];
        const float pair = __shfl_xor_sync(~0u, x, 1);
        if ((d.flags & kFlagRope) && r < q_rows + hd) {
          const float2 cs = s.f.rope[batch_row(i) % NB][dim >> 1];
          x = r & 1 ? x * cs.x + pair * cs.y : x * cs.x - pair * cs.y;
        }
        const float next = __shfl_down_sync(~0u, x, 1);
        if (!active(i)) continue;
        const int row = batch_row(i);
        if (r < q_rows) {
          const int index = ((row * p.n_kv_heads + group) * q_rows + r) >> 1;
          if ((r & 1) == 0) put(p.q, index, pack_bf16(x * p.q_scale, next * p.q_scale), tag);
        } else {
          const bool is_value = r >= q_rows + hd;
          put(is_value ? p.v_new : p.k_new, (row * p.n_kv_heads + group) * hd + dim, round_bf16(x), tag);
          store_kv(layer, row, group, dim, is_value, x, next);
        }
      }
    }
  }

  // Rows 0..7 of the tile are gates, 8..15 the ups of the same hidden units.
  __device__ __forceinline__ float gated(float x) {
    const float up = __shfl_xor_sync(~0u, x, 8);
    return x / (1.f + __expf(-x)) * up;
  }

  __device__ void upgate(const TaskDescriptor& d, const Layer& layer) {
    const uint32_t tag = tag_of(p, d.layer);
#pragma unroll 1
    for (int tile = d.tile_begin; tile < d.tile_begin + d.tile_count; tile++) {
      take();
      apply_scale(d.layer);
#pragma unroll
      for (int i = 0; i < kPer; i++) {
        const float h = gated(v[i]), next = __shfl_down_sync(~0u, h, 1);
        if (active(i) && out_row() < 8 && (lane() & 1) == 0)
          put(p.ffn, (batch_row(i) * layer.intermediate + tile * 8 + out_row()) >> 1, pack_bf16(h, next), tag);
      }
    }
  }

  __device__ void expert_upgate(const TaskDescriptor& d, const Layer& layer, const Route& route) {
    const uint32_t tag = tag_of(p, d.layer);
    const int tiles = layer.intermediate / 8;
    wait_unit();  // the route is in place once the first unit is
    const int2 items = slice(d, route, tiles);
#pragma unroll 1
    for (int item = items.x; item < items.y; item++) {
      take();
      apply_scale(d.layer);
      const RouteEntry e = route.entry[item / tiles];
#pragma unroll
      for (int i = 0; i < kPer; i++) {
        const int row = batch_row(i);
        const bool routed = active(i) && (e.rows >> row & 1);
        const int pair = routed ? route.pair[e.begin + __popc(e.rows & ((1u << row) - 1))] : 0;
        const float h = gated(v[i]) * (routed ? route.weight[pair] : 0.f), next = __shfl_down_sync(~0u, h, 1);
        if (routed && out_row() < 8 && (lane() & 1) == 0)
          put(p.ffn, (pair * layer.intermediate + (item % tiles) * 8 + out_row()) >> 1, pack_bf16(h, next), tag);
      }
    }
  }

  // Adds the tile to the residual that this SM owns; with `publish` hands the sum to the next layer.
  __device__ void add_owned(const TaskDescriptor& d, bool publish) {
    const uint32_t tag = tag_of(p, d.layer + 1);
    const int first = owned_begin();
#pragma unroll 1
    for (int tile = d.tile_begin; tile < d.tile_begin + d.tile_count; tile++) {
      take();
#pragma unroll
      for (int i = 0; i < kPer; i++) {
        if (!active(i)) continue;
        float& mine = s.f.owned[tile - first][batch_row(i)][out_row()];
        mine += v[i];
        if (publish) put(p.residual, batch_row(i) * p.hidden + tile * 16 + out_row(), mine, tag);
      }
    }
  }

  __device__ void lm_head(const TaskDescriptor& d) {
#pragma unroll 1
    for (int tile = d.tile_begin; tile < d.tile_begin + d.tile_count; tile++) {
      take();
      apply_scale(d.layer);
      const int id = tile * 16 + out_row();
#pragma unroll
      for (int i = 0; i < kPer; i++)
        if (active(i) && id < p.vocab) p.logits[static_cast<size_t>(batch_row(i)) * p.vocab + id] = v[i] * p.logit_scale;
    }
  }

  __device__ __forceinline__ int owned_begin() const {
    return static_cast<int>(blockIdx.x) * (p.hidden / 16) / p.n_owners;
  }

  // The embedding of each row's token: this SM's tiles of the residual. `embed` is packed like a weight matrix.
  __device__ void embed() {
    if (static_cast<int>(blockIdx.x) >= p.n_owners) return;
    const PackPlan plan = PackPlan::of(p.hidden);
    const int first = owned_begin(), last = (static_cast<int>(blockIdx.x) + 1) * (p.hidden / 16) / p.n_owners;
#pragma unroll 1
    for (int tile = first; tile < last; tile++)
#pragma unroll
      for (int i = 0; i < kPer; i++) {
        if (!active(i)) continue;
        const int id = p.tokens[batch_row(i)];
        const uint8_t* src = p.embed + static_cast<size_t>(id >> 4) * plan.tile_bytes() + tile * 512 + fragment_offset(id & 15, out_row(), 1);
        const float x = __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(src));
        s.f.owned[tile - first][batch_row(i)][out_row()] = x;
        put(p.residual, batch_row(i) * p.hidden + tile * 16 + out_row(), x, tag_of(p, 0));
      }
    __syncwarp();
  }

  __device__ void loop(int n_tasks) {
    DescriptorReader<NB> reader{s, {&p}};
    at = reader.at;
    embed();
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open();
      at = reader.at;
      const Layer& layer = p.layers[d.opcode == static_cast<int>(Opcode::kLmHead) ? 0 : d.layer];
      switch (static_cast<Opcode>(d.opcode)) {
        case Opcode::kRouterGemm: router(d); break;
        case Opcode::kQkvProj: qkv(d, layer); stamp(p, 8, d.layer); break;
        case Opcode::kFfnUpGateAct: upgate(d, layer); break;
        case Opcode::kMoeUpGateActDrain: expert_upgate(d, layer, s.f.route[d.layer & 1]); stamp(p, 9, d.layer); break;
        case Opcode::kOProj: add_owned(d, false); break;
        case Opcode::kFfnDown:
        case Opcode::kMoeDownDrain: add_owned(d, true); stamp(p, 10, d.layer); break;
        case Opcode::kLmHead: lm_head(d); break;
        default: break;
      }
      reader.close();
    }
  }
};

}  // namespace pointcode::mk
