// Consumer warps: activations from other SMs into shared memory, and the GEMMs over ring stages.
#pragma once

#include "mk_consumer_core.cuh"
#include "mk_route.cuh"

namespace pointcode::mk {

template <int NB>
struct ConsumerGemm : ConsumerCore<NB> {
  using Core = ConsumerCore<NB>;
  using Core::act_word;
  using Core::f;
  using Core::g;
  using Core::give;
  using Core::kRowBytes;
  using Core::lane;
  using Core::mma_run;
  using Core::normed_layer;
  using Core::ordinal;
  using Core::p;
  using Core::pos;
  using Core::release;
  using Core::stage;
  using Core::t;
  using Core::w;

  using Core::Core;

  // residual x norm weight, unscaled (the storer applies 1 / rms), and this warp's share of the sum of squares.
  __device__ __forceinline__ void norm(int layer) {
    constexpr int kAtOnce = NB < 4 ? NB : 4;  // rows whose loads are in flight together
    const PackPlan plan = PackPlan::of(p.hidden);
    const float* weight = layer == p.n_layers ? p.final_norm : p.layers[layer].norm;
    const int per_stage = plan.tiles_per_warp * 8, n_pairs = plan.stages * per_stage;  // <= 128
    const uint32_t tag = tag_of(p, layer);
    float2 wt[4];
    uint32_t pair[4];  // byte offset of this lane's pairs in a row
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int j = lane + 32 * i, st = j / per_stage,
                at = (st * kConsumers + w) * per_stage + j - st * per_stage;
      pair[i] = j >= n_pairs || at * 2 >= p.hidden ? kNowhere : at * 16;
      wt[i] = pair[i] == kNowhere ? float2{0.f, 0.f}
                                  : __ldg(reinterpret_cast<const float2*>(weight) + at);
    }
#pragma unroll 1
    for (int r0 = 0; r0 < p.n_rows; r0 += kAtOnce) {
      uint4 x[4 * kAtOnce];
#pragma unroll 1
      for (uint32_t n = 1;; n++) {
        const uint8_t* base = opaque(p.residual) + static_cast<size_t>(r0) * p.hidden * 8;
        bool ok = true;
#pragma unroll
        for (int i = 0; i < 4 * kAtOnce; i++) {
          x[i] = {0, tag, 0, tag};
          if (pair[i & 3] != kNowhere && r0 + i / 4 < p.n_rows)
            x[i] = load_volatile(base + i / 4 * (p.hidden * 8) + pair[i & 3]);
        }
#pragma unroll
        for (int i = 0; i < 4 * kAtOnce; i++) ok &= tagged(x[i], tag);
        if (ok) break;
        spin(p, n, ordinal, WaitKind::kData, x[0].y, tag);
      }
#pragma unroll
      for (int h = 0; h < kAtOnce; h++) {
        const int r = r0 + h;
        if (r >= p.n_rows) break;
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float a = __uint_as_float(x[h * 4 + i].x), b = __uint_as_float(x[h * 4 + i].z);
          squares += a * a + b * b;
          if (lane + 32 * i < n_pairs)
            *reinterpret_cast<uint32_t*>(act_word(lane + 32 * i, NB, r)) =
                pack_bf16(a * wt[i].x, b * wt[i].y);
        }
#pragma unroll
        for (int i = 16; i; i >>= 1) squares += __shfl_xor_sync(~0u, squares, i);
        if (lane == 0) f().square_sum[layer & 1][r][w] = squares;
      }
    }
    __syncwarp();
    normed_layer = layer;
  }

  // A batch of activations: units of (block row, stage), copied into `act` at once. Block row b is payload row `rows[b]`, or
  // b itself. A unit is per_stage pieces of 16 bytes (two pairs), one per lane; a load covers `units` of them.
  static constexpr int kAtOnce = Fixed<NB>::kFetch;
  struct Batch {
    const uint8_t* rows;
    int n, first_stage, n_stages, per_stages;  // per_stages: 65536 / n_stages, rounded up
  };
  struct
      Fetch {  // the same for all batches of a task; mine, off: this lane's unit in a load and its piece in the unit
    const uint8_t* base;
    int k, per_stage, units, mine, off;
  };
  // Starts the loads of a batch; `settle` finishes them. In between the warp works on the batch before.
  __device__ __forceinline__ void start(const Fetch& f, const Batch& b, uint32_t tag,
                                        uint4 (&x)[kAtOnce], uint32_t (&from)[kAtOnce],
                                        int (&word)[kAtOnce]) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int unit = i * f.units + f.mine, row = unit * b.per_stages >> 16,
                st = unit - row * b.n_stages;
      const int pair = (((b.first_stage + st) * kConsumers + w) * f.per_stage + f.off) * 2;
      from[i] = kNowhere, word[i] = -1, x[i] = {0, tag, 0, tag};
      if (f.mine >= f.units || row >= b.n) continue;
      word[i] = ((st * (f.per_stage >> 2) + (f.off >> 2)) * b.n + row) * kRowBytes +
                (f.off & 1) * 16 + (f.off >> 1 & 1) * 4;
      if (pair * 2 >= f.k) continue;  // the padding of k
      from[i] = ((b.rows ? b.rows[row] : row) * (f.k / 2) + pair) * 8;
      x[i] = load_volatile(f.base + from[i]);
    }
  }
  __device__ __forceinline__ void settle(const Fetch& fetch, uint32_t tag, uint4 (&x)[kAtOnce],
                                         const uint32_t (&from)[kAtOnce],
                                         const int (&word)[kAtOnce]) const {
#pragma unroll 1
    for (uint32_t n = 1;; n++) {
      bool ok = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) ok &= tagged(x[i], tag);
      if (ok) break;
      spin(p, n, ordinal, WaitKind::kData, x[0].y, tag);
#pragma unroll
      for (int i = 0; i < kAtOnce; i++)
        if (from[i] != kNowhere) x[i] = load_volatile(fetch.base + from[i]);
    }
    __syncwarp();  // everybody is done with the batch before
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (word[i] < 0) continue;
      *reinterpret_cast<uint32_t*>(f().act[w] + word[i]) = x[i].x;
      *reinterpret_cast<uint32_t*>(f().act[w] + word[i] + 8) = x[i].z;  // the next pair: t + 1
    }
    __syncwarp();
  }

  // GEMMs of the normed residual, which lies in `act`: tiles of 16 output rows. Gate/up tiles of experts come as items.
  __device__ __forceinline__ void normed_gemm(const TaskDescriptor& d) {
    const PackPlan plan = PackPlan::of(p.hidden);
    const bool claimed = d.opcode == static_cast<int>(Opcode::kMoeUpGateActDrain);
    const uint8_t* x = f().act[w] + t * 8 +
                       g % NB * kRowBytes;  // columns past the batch repeat rows; nobody reads them
#pragma unroll 1
    for (int i = 0; claimed || i < d.tile_count; i++) {
      float c[2][4] = {};
      int item = kNoItem;
      if (claimed) {
        stage(pos);
        item = smem<NB>().item[pos.slot];
        if (item == kNoItem) {
          release(pos);
          pos.next();
          give(c, kNoItem);
          return;
        }
      }
      mma_run(x, NB * kRowBytes, ~0u, plan.tiles_per_warp, plan.stages, c);
      give(c, item);
    }
  }

  // GEMMs of activations per batch row (attention output, dense hidden) and of experts' hidden units (down). A tile is a
  // sum over parts: stages of the matrix, or the experts of the union in ascending order. Parts are fetched in batches.
  __device__ __forceinline__ Batch batch_at(bool experts, int fits, const Route& route, int n_parts,
                                            int stages, int& part) const {
    Batch b = {nullptr, p.n_rows, part, 1, 0};
    if (experts) {
      b.rows = route.pair + route.entry[part].begin, b.n = 0, b.first_stage = 0,
      b.n_stages = stages;
      while (part < n_parts && (b.n + __popc(route.entry[part].rows)) * stages <= fits)
        b.n += __popc(route.entry[part++].rows);
    } else {
      b.n_stages = min(n_parts - part, fits / b.n);
      part += b.n_stages;
    }
    b.per_stages = 65536 / b.n_stages + 1;
    return b;
  }
  __device__ __forceinline__ void fetched_gemm(const TaskDescriptor& d, const Layer& layer) {
    const Opcode op = static_cast<Opcode>(d.opcode);
    const bool experts = op == Opcode::kMoeDownDrain;
    const int k = op == Opcode::kOProj ? p.n_heads * p.head_dim : layer.intermediate;
    const PackPlan plan = PackPlan::of(k);
    const int k_tiles = plan.tiles_per_warp, per_stage = k_tiles * 4, units = 32 / per_stage;
    const Route& route = f().route[d.layer & 1];
    const uint32_t tag = tag_of(p, d.layer);
    const Fetch fetch = {op == Opcode::kOProj ? p.attn : p.ffn,
                         k,
                         per_stage,
                         units,
                         lane / per_stage,
                         lane % per_stage};
    if (experts) stage(pos);  // the route is in place once the first stage is
    normed_layer = -1;
    const int n_parts = experts ? route.n_experts : plan.stages;
#pragma unroll 1
    for (int i = 0; i < d.tile_count; i++) {
      float c[2][4] = {};
      uint4 x[kAtOnce];
      uint32_t from[kAtOnce];
      int word[kAtOnce], part = 0, next = 0,
                         n = 1;  // parts [part, last) lie in `act`, n block rows
#pragma unroll 1
      while (true) {
        const int last = next;
        Batch b;
        if (next < n_parts) {
          b = batch_at(experts, kAtOnce * units, route, n_parts, plan.stages, next);
          start(fetch, b, tag, x, from, word);
        }
        const uint8_t* row = f().act[w] + t * 8;
        if (!experts) {
          mma_run(row + min(g, n - 1) * kRowBytes, n * kRowBytes, ~0u, k_tiles, last - part, c);
          part = last;
        }
        const int base = experts ? route.entry[part].begin : 0;
#pragma unroll 1
        for (; part < last; part++) {
          const RouteEntry e = route.entry[part];
          const uint32_t mask = e.rows >> g & 1 ? ~0u : 0u;
          const int index = mask ? e.begin - base + __popc(e.rows & ((1u << g) - 1)) : 0;
          mma_run(row + index * kRowBytes, n * kRowBytes, mask, k_tiles, plan.stages, c);
        }
        if (last == next) break;
        settle(fetch, tag, x, from, word);
        if (part == 0) stamp(p, 5, d.layer);
        n = b.n;
      }
      give(c, kNoItem);
    }
  }
};

}  // namespace pointcode::mk
