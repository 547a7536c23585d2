// Storer warp: sums the consumer warps' partial tiles, runs the epilogue and hands the result over.
// Lane l holds output row l & 15 of the tile for the batch rows 4 (l >> 4) .. + 3.
#pragma once

#include <climits>

#include "mk_leaders.cuh"
#include "mk_route.cuh"

namespace pointcode::mk {

template <int NB>
struct Storer {
  static constexpr int kPer = NB >= 4 ? 4 : NB;
  const Params& p;
  uint32_t n = 0;  // units taken
  int ordinal = -1;
  int scaled_layer = -1;   // layer that `scale` belongs to
  float scale[kPer] = {};  // 1 / rms of each batch row, for GEMMs of the residual
  float v[kPer] = {};

  __device__ __forceinline__ int lane() const { return threadIdx.x & 31; }
  __device__ __forceinline__ int out_row() const { return lane() & 15; }
  __device__ __forceinline__ int first_row() const { return NB == 8 ? (lane() >> 4) * 4 : 0; }

  // Partial sums of each of a task's tiles: of the stages of a matrix whose input all warps have, or one per warp.
  __device__ __forceinline__ int parts(const TaskDescriptor& d, const Layer& layer) const {
    const Opcode op = static_cast<Opcode>(d.opcode);
    if (op == Opcode::kOProj || op == Opcode::kFfnDown) return kConsumers;
    if (op == Opcode::kMoeDownDrain)
      return p.counted ? PackPlan::of(layer.intermediate).parts() : kConsumers;
    return PackPlan::of(p.hidden).parts();
  }
  // The next unit into `v`; returns its item.
  __device__ __forceinline__ int take(int n_parts) {
    constexpr int kSlots = Fixed<NB>::kRedSlots;
    Fixed<NB>& f = smem<NB>().f;
    const int b = n % kSlots;
    mbar_wait(p, &f.red_full[b], (n / kSlots) & 1, ordinal, WaitKind::kReduceFull);
    const int item = f.red_item[b];
#pragma unroll
    for (int i = 0; i < kPer; i++) v[i] = 0.f;
#pragma unroll
    for (int w = 0; w < kConsumers; w++)
#pragma unroll
      for (int i = 0; i < kPer; i++)
        if (w < n_parts) v[i] += f.red[b][w][out_row()][first_row() + i];
    __threadfence_block();
    __syncwarp();
    if (lane() == 0) *static_cast<volatile uint32_t*>(&f.red_free[b]) = n + kSlots;
    n++;
    return item;
  }
  __device__ __forceinline__ void apply_scale(int layer) {
    if (scaled_layer != layer) {
      scaled_layer = layer;
#pragma unroll
      for (int i = 0; i < kPer; i++) {
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < kConsumers; w++)
          sum += smem<NB>().f.square_sum[layer & 1][first_row() + i][w];
        scale[i] = rsqrtf(sum / p.hidden + p.eps);
      }
    }
#pragma unroll
    for (int i = 0; i < kPer; i++) v[i] *= scale[i];
  }

  // RoPE, then q is handed over, k and v are handed over and written to their page. All batch rows at once, as in
  // `upgate`: whoever waits for q waits for the slowest of these.
  __device__ __forceinline__ void qkv(const TaskDescriptor& d, const Layer& layer, int tile) {
    const uint32_t tag = tag_of(p, d.layer);
    const int hd = p.head_dim, q_rows = p.n_heads / p.n_kv_heads * hd, group_rows = q_rows + 2 * hd;
    const int at = tile * 16 + out_row(), group = at / group_rows, r = at % group_rows,
              dim = r & (hd - 1);
    const bool rotates = (d.flags & kFlagRope) && r < q_rows + hd, is_value = r >= q_rows + hd,
               sliding = layer.flags & kLayerSliding;
#pragma unroll
    for (int i = 0; i < kPer; i++) {
      const int row = first_row() + i;
      const bool live = (NB == 8 || lane() < 16) && row < p.n_rows;
      float x = v[i];
      const float pair = __shfl_xor_sync(~0u, x, 1);
      if (rotates) {
        const float2 cs = smem<NB>().f.rope[row][dim >> 1];
        x = r & 1 ? x * cs.x + pair * cs.y : x * cs.x - pair * cs.y;
      }
      const float next = __shfl_down_sync(~0u, x, 1);
      if (!live) continue;
      const int kv = (row * p.n_kv_heads + group);
      if (r < q_rows) {
        if ((r & 1) == 0)
          put(p.q, (kv * q_rows + r) >> 1, pack_bf16(x * p.q_scale, next * p.q_scale), tag);
        continue;
      }
      put(is_value ? p.v_new : p.k_new, kv * hd + dim, round_bf16(x), tag);
      const int token = smem<NB>().f.position[row] % kPageTokens;
      const size_t block =
          (static_cast<size_t>(smem<NB>().f.page[sliding][row]) * p.n_kv_heads + group) *
          (kPageTokens * hd * 2);
      if (is_value)
        *reinterpret_cast<__nv_bfloat16*>(
            layer.v + block + fragment_offset(dim, token, kPageTokens / 16)) = __float2bfloat16(x);
      else if ((dim & 1) == 0)
        *reinterpret_cast<uint32_t*>(layer.k + block + fragment_offset(token, dim, hd / 16)) =
            pack_bf16(x, next);
    }
  }

  // Rows 0..7 of the tile are gates, 8..15 the ups of the same hidden units. All batch rows at once: this is the epilogue
  // that runs most often. `route` is null for a dense layer, where the item is the tile.
  __device__ __forceinline__ void upgate(const TaskDescriptor& d, int width, const Route* route,
                                         int item) {
    const uint32_t tag = tag_of(p, d.layer);
    int unit = item * 8;
    RouteEntry e = {0, 0xff, 0};
    if (route) e = route->entry[item / (width / 8)], unit = item % (width / 8) * 8;
    const bool writes = out_row() < 8 && (lane() & 1) == 0 && (NB == 8 || lane() < 16);
#pragma unroll
    for (int i = 0; i < kPer; i++) {
      const int row = first_row() + i;
      const bool live = row < p.n_rows && (e.rows >> row & 1);
      const int out = !route ? row
                      : live ? route->pair[e.begin + __popc(e.rows & ((1u << row) - 1))]
                             : 0;
      const float weight = route ? route->weight[out] : 1.f, up = __shfl_xor_sync(~0u, v[i], 8);
      const float h = __fdividef(v[i], 1.f + __expf(-v[i])) * up * weight,
                  next = __shfl_down_sync(~0u, h, 1);
      if (live && writes)
        put(p.ffn, operand_at((out * width + unit + out_row()) >> 1), pack_bf16(h, next), tag);
    }
  }

  // Adds to the residual that this SM owns, in fp32; the down projection hands the sum to the next layer's norm, in bf16.
  __device__ __forceinline__ void add_owned(const TaskDescriptor& d, int tile) {
    const bool hands_over = d.opcode != static_cast<int>(Opcode::kOProj);
    const uint32_t tag = tag_of(p, d.layer + 1);
    float (*owned)[16] = smem<NB>().f.owned[tile - owned_begin()];
#pragma unroll
    for (int i = 0; i < kPer; i++) {
      const int row = first_row() + i;
      const bool live = (NB == 8 || lane() < 16) && row < p.n_rows;
      float sum = 0.f;
      if (live) sum = owned[row][out_row()] += v[i];
      const float next = __shfl_down_sync(~0u, sum, 1);
      if (hands_over && live && (lane() & 1) == 0)
        put(p.residual, operand_at((row * p.hidden + tile * 16 + out_row()) >> 1),
            pack_bf16(sum, next), tag);
    }
  }

  // LM_HEAD.
  __device__ __forceinline__ void logits(const TaskDescriptor& d) {
    const int last = d.tile_begin + d.tile_count, n_parts = PackPlan::of(p.hidden).parts();
#pragma unroll 1
    for (int tile = d.tile_begin; tile < last; tile++) {
      take(n_parts);
      if (d.flags & kFlagFusedNorm) apply_scale(d.layer);
      const int token = tile * 16 + out_row();
#pragma unroll 1
      for (int i = 0; i < kPer; i++) {
        const int row = first_row() + i;
        if ((NB == 8 || lane() < 16) && row < p.n_rows && token < p.vocab)
          store_logit(row, token, v[0] * p.logit_scale);
#pragma unroll
        for (int j = 1; j < kPer; j++) v[j - 1] = v[j];
      }
    }
  }
  __device__ __forceinline__ void store_logit(int row, int token, float logit) const {
    p.logits[static_cast<size_t>(row) * p.vocab + token] = logit;
    offer_leader<NB>(p, row, token, logit);
  }

  __device__ __forceinline__ int owned_begin() const {
    return static_cast<int>(blockIdx.x) * (p.hidden / 16) / p.n_owners;
  }

  // The embedding of each row's token: this SM's tiles of the residual. `embed` is packed like a weight matrix.
  __device__ void embed() {
    if (static_cast<int>(blockIdx.x) >= p.n_owners) return;
    const PackPlan plan = PackPlan::of(p.hidden);
    const int first = owned_begin(),
              last = (static_cast<int>(blockIdx.x) + 1) * (p.hidden / 16) / p.n_owners;
#pragma unroll 1
    for (int i = lane(); i < (last - first) * p.n_rows * 8; i += 32) {  // two values
      const int k = (i & 7) * 2, row = (i >> 3) % p.n_rows, tile = first + (i >> 3) / p.n_rows,
                id = p.tokens[row], at = row * p.hidden + tile * 16 + k;
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(
          p.embed + static_cast<size_t>(id >> 4) * plan.tile_bytes() + tile * 512 +
          fragment_offset(id & 15, k, 1));
      const float2 x = unpack_bf16(pair);
      float* mine = &smem<NB>().f.owned[tile - first][row][k];
      mine[0] = x.x, mine[1] = x.y;
      const uint32_t tag = tag_of(p, 0);
      if (p.counted)
        put(p.residual, at, x.x, tag), put(p.residual, at + 1, x.y, tag);
      else
        put(p.residual, operand_at(at >> 1), pair, tag);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void task(const TaskDescriptor& d) {
    const Opcode op = static_cast<Opcode>(d.opcode);
    const Layer& layer = p.layers[d.layer < p.n_layers ? d.layer : 0];
    const Route& route = smem<NB>().f.route[d.layer & 1];
    const bool claimed = op == Opcode::kMoeUpGateActDrain, scaled = d.flags & kFlagFusedNorm;
    const int last = claimed ? INT_MAX : d.tile_begin + d.tile_count, n_parts = parts(d, layer);
#pragma unroll 1
    for (int tile = d.tile_begin; tile < last; tile++) {
      const int item = take(n_parts);
      if (claimed && item == kNoItem) return;
      if (scaled) apply_scale(d.layer);
      if (claimed || op == Opcode::kFfnUpGateAct) {
        upgate(d, layer.intermediate, claimed ? &route : nullptr, claimed ? item : tile);
        continue;
      }
      if (op == Opcode::kQkvProj) {
        qkv(d, layer, tile);
        continue;
      }
      if (op == Opcode::kOProj || op == Opcode::kFfnDown || op == Opcode::kMoeDownDrain) {
        add_owned(d, tile);
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < kPer; i++) {
        const float x = v[0];
#pragma unroll
        for (int j = 1; j < kPer; j++) v[j - 1] = v[j];
        const int row = first_row() + i;
        const bool live = (NB == 8 || lane() < 16) && row < p.n_rows;
        if (live && tile * 16 + out_row() < p.n_experts)  // the last tile may be padded
          put(p.router, row * p.n_experts + tile * 16 + out_row(), x, tag_of(p, d.layer));
      }
    }
  }

  __device__ void loop(int n_tasks) {
    DescriptorReader<NB> reader;
    begin_leaders<NB>(p);
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open(p);
      ordinal = d.ordinal;
      if (d.opcode != static_cast<int>(Opcode::kAttnDecode) &&
          d.opcode != static_cast<int>(Opcode::kAttnCombine)) {
        if (d.opcode == static_cast<int>(Opcode::kLmHead))
          logits(d);
        else
          task(d);
        stamp(p, d.opcode == 1 ? 8 : d.opcode == 12 ? 9 : d.opcode == 13 ? 10 : 14, d.layer);
      }
      reader.close();
    }
    publish_leaders<NB>(p);
  }
};

}  // namespace pointcode::mk
