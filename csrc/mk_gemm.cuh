// Consumer warps: activations into shared memory, and the GEMMs over ring stages.
#pragma once

#include "mk_batch.cuh"
#include "mk_consumer_core.cuh"

namespace pointcode::mk {

template <int NB>
struct ConsumerGemm : ConsumerCore<NB> {
  using Core = ConsumerCore<NB>;
  using Core::act_word;
  using Core::batches;
  using Core::f;
  using Core::g;
  using Core::give;
  using Core::kRowBytes;
  using Core::lane;
  using Core::mma_stage;
  using Core::next_item;
  using Core::normed_layer;
  using Core::ordinal;
  using Core::p;
  using Core::pos;
  using Core::release;
  using Core::stage;
  using Core::sync;
  using Core::t;
  using Core::tile;
  using Core::w;

  using Core::Core;

  // residual x norm weight, unscaled (the storer applies 1 / rms), and this warp's share of the sum of squares.
  __device__ __forceinline__ void norm(int layer) {
    constexpr int kAtOnce = NB < 4 ? NB : 4;  // rows whose loads are in flight together
    const PackPlan plan = PackPlan::of(p.hidden);
    const float* weight = layer == p.n_layers ? p.final_norm : p.layers[layer].norm;
    const int n_pairs = plan.k_tiles() * 8;  // <= 1024
    const uint32_t tag = tag_of(p, layer);
    float2 wt[4];
    uint32_t from[4];  // byte offset of this lane's pairs in a row
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int pair = (w + kConsumers * i) * 32 + lane;
      from[i] = pair * 2 >= p.hidden ? kNowhere : pair * 16;
      wt[i] = from[i] == kNowhere ? float2{0.f, 0.f}
                                  : __ldg(reinterpret_cast<const float2*>(weight) + pair);
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
          if (from[i & 3] != kNowhere && r0 + i / 4 < p.n_rows)
            x[i] = load_volatile(base + i / 4 * (p.hidden * 8) + from[i & 3]);
        }
#pragma unroll
        for (int i = 0; i < 4 * kAtOnce; i++) ok &= tagged(x[i], tag);
        if (ok) break;
        spin(p, n, ordinal, WaitKind::kData, x[0].y, tag);
      }
      if (r0 == 0) sync();  // nobody reads what lies in `act`
#pragma unroll
      for (int h = 0; h < kAtOnce; h++) {
        const int r = r0 + h;
        if (r >= p.n_rows) break;
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float a = __uint_as_float(x[h * 4 + i].x), b = __uint_as_float(x[h * 4 + i].z);
          squares += a * a + b * b;
          const int pair = (w + kConsumers * i) * 32 + lane;
          if (pair < n_pairs)
            *reinterpret_cast<uint32_t*>(f().act + act_word(pair, NB, r)) =
                pack_bf16(a * wt[i].x, b * wt[i].y);
        }
#pragma unroll
        for (int i = 16; i; i >>= 1) squares += __shfl_xor_sync(~0u, squares, i);
        if (lane == 0) f().square_sum[layer & 1][r][w] = squares;
      }
    }
    sync();
    normed_layer = layer;
  }

  // A batch of activations, from the ring into `act`, by all warps: units of (row, stage) of per_unit 16-byte pieces (two
  // pairs). A piece whose tag is not right yet was copied too early: it is read from where it is made. Two batches fit, so
  // that one sync is enough: who writes the second next knows that everybody is done with the first. Returns the batch.
  __device__ __forceinline__ const uint8_t* take(const Batches& cut, const Batch& b,
                                                 const PackPlan& plan, const uint8_t* base, int k,
                                                 uint32_t tag) {
    constexpr int kPieces = kStageBytes / 16 / (kConsumers * 32);  // per lane
    const int per_unit = plan.octets * 32, n_pieces = b.n * b.n_stages * per_unit;
    const int by_unit = (65535 + per_unit) / per_unit, by_row = (65535 + b.n_stages) / b.n_stages;
    const uint4* ring = stage(pos) - lane;
    uint4 x[kPieces];
    int word[kPieces];
    uint32_t from[kPieces];
    bool ok = true;
#pragma unroll
    for (int i = 0; i < kPieces; i++) {
      const int piece = w * 32 + lane + kConsumers * 32 * i, unit = piece * by_unit >> 16,
                off = piece - unit * per_unit, row = unit * by_row >> 16;
      const int pair = (unit - row * b.n_stages) * per_unit * 2 + off * 2,
                at = b.first_stage * plan.stage_k() + pair * 2;  // of the row
      word[i] = -1, x[i] = {0, tag, 0, tag}, from[i] = kNowhere;
      if (piece >= n_pieces) continue;
      word[i] = act_word(pair, b.n, row);
      if (at >= k) continue;  // the padding of k
      from[i] = (cut.row_id(b.row + row) * k + at) * 4;
      x[i] = ring[piece];
      ok &= tagged(x[i], tag);
    }
    if (!ok) gather<kPieces>(p, ordinal, tag, base, x, from);
    uint8_t* out = f().act + (batches++ & 1) * kBatchBytes;
#pragma unroll
    for (int i = 0; i < kPieces; i++) {
      if (word[i] < 0) continue;
      *reinterpret_cast<uint32_t*>(out + word[i]) = x[i].x;
      *reinterpret_cast<uint32_t*>(out + word[i] + 8) = x[i].z;  // the next pair: t + 1
    }
    release(pos);
    pos.next();
    sync();
    return out;
  }

  // GEMMs of the normed residual, which lies in `act`: tiles of 16 output rows. Gate/up tiles of experts come as items.
  __device__ __forceinline__ void normed_gemm(const TaskDescriptor& d) {
    const PackPlan plan = PackPlan::of(p.hidden);
    const bool claimed = d.opcode == static_cast<int>(Opcode::kMoeUpGateActDrain);
    const uint8_t* x = f().act + g % NB * kRowBytes +
                       t * 8;  // columns past the batch repeat rows; nobody reads them
#pragma unroll 1
    for (int i = 0; claimed || i < d.tile_count; i++) {
      const int item = claimed ? next_item() : kNoItem;
      if (claimed && item == kNoItem) return end_of_items();
      tile(plan, x, NB * kRowBytes, item);
    }
  }
  // Tells the storer that a claimed task has no more tiles.
  __device__ __forceinline__ void end_of_items() {
    const float nothing[4][4] = {};
    give(nothing, w, 1, kNoItem);
    this->units++;
  }

  // GEMMs of what other SMs made: attention output, dense hidden units, experts' hidden units (down). A tile is a sum over
  // the experts of the union in ascending order; which warp's sum a stage is part of depends on its matrix alone.
  __device__ __forceinline__ void fetched_gemm(const TaskDescriptor& d, const Layer& layer) {
    const Opcode op = static_cast<Opcode>(d.opcode);
    const bool experts = op == Opcode::kMoeDownDrain, o = op == Opcode::kOProj;
    const int k = o ? p.n_heads * p.head_dim : layer.intermediate;
    const PackPlan plan = PackPlan::of(k);
    const uint32_t tag = tag_of(p, d.layer);
    const Route& route = f().route[d.layer & 1];
    if (normed_layer != -1) sync();  // nobody reads the normed input
    normed_layer = -1;
    if (experts) stage(pos);  // the route is in place once the first stage is
    const Batches cut(p, experts ? &route : nullptr, plan);
#pragma unroll 1
    for (int i = 0; i < d.tile_count; i++) {
      float c[4][4] = {};
#pragma unroll 1
      for (int part = 0, first = 0; part < cut.n_parts;) {
        const Batch b = cut.at(part, first);
        const uint8_t* x = take(cut, b, plan, o ? p.attn : p.ffn, k, tag) + t * 8;
        if (part == 0) stamp(p, 5, d.layer);
#pragma unroll 1
        for (int u = b.part; u < b.end; u++) {
          const RouteEntry e = experts ? route.entry[u] : RouteEntry{0, 0xff, 0};
          int j = (w - e.expert * plan.stages - b.first_stage) & (kConsumers - 1);
          const uint32_t mask = e.rows >> g & 1 ? ~0u : 0u;
          const int column = !experts ? min(g, b.n - 1)
                             : mask   ? e.begin - b.row + __popc(e.rows & ((1u << g) - 1))
                                      : 0;
#pragma unroll 1
          for (; j < b.n_stages; j += kConsumers)
            mma_stage(pos.ahead(j), x + (j * plan.octets * 8 * b.n + column) * kRowBytes,
                      b.n * kRowBytes, mask, plan.octets, c);
          pos = pos.ahead(b.n_stages);
        }
        first = b.whole(plan.stages) ? 0 : b.first_stage + b.n_stages;
        part = b.whole(plan.stages) ? b.end : b.part;
      }
      give(c, w, 1, kNoItem);
      this->units++;
    }
  }
};

}  // namespace pointcode::mk
