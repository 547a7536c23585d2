// Consumer warps: activations from other SMs into shared memory, and the GEMMs over ring stages.
#pragma once

#include "mk_batch.cuh"
#include "mk_consumer_core.cuh"

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

  // This warp's part of a batch, from the ring into `act`: units of (row, stage) of per_stage 16-byte pieces (two pairs).
  // A piece whose tag is not right yet was copied too early: it is read from where it is made.
  __device__ __forceinline__ void take(const Batches& batches, const Batch& b, const PackPlan& plan,
                                       const uint8_t* base, int k, uint32_t tag) {
    constexpr int kPieces = kBatchBytes * 2 / 16 / 32;  // per lane
    const int per_stage = plan.tiles_per_warp * 4, n_pieces = b.n * b.n_stages * per_stage;
    const int by_unit = 65536 / per_stage + 1, by_row = 65536 / b.n_stages + 1;
    const uint8_t* from_ring =
        reinterpret_cast<const uint8_t*>(stage(pos) - lane) + w * (per_stage * 16);
    uint4 x[kPieces];
    int word[kPieces];
    uint32_t from[kPieces];
    bool ok = true;
#pragma unroll
    for (int i = 0; i < kPieces; i++) {
      const int piece = lane + 32 * i, unit = piece * by_unit >> 16, off = piece - unit * per_stage,
                row = unit * by_row >> 16, st = unit - row * b.n_stages;
      const int at = (((b.first_stage + st) * kConsumers + w) * per_stage + off) * 4;  // of the row
      word[i] = -1, x[i] = {0, tag, 0, tag}, from[i] = kNowhere;
      if (piece >= n_pieces) continue;
      word[i] = ((st * plan.tiles_per_warp + (off >> 2)) * b.n + row) * kRowBytes + (off & 1) * 16 +
                (off >> 1 & 1) * 4;
      if (at >= k) continue;  // the padding of k
      from[i] = (batches.row_id(b.row + row) * k + at) * 4;
      x[i] = *reinterpret_cast<const uint4*>(from_ring + unit * (per_stage * 16 * kConsumers) +
                                             off * 16);
      ok &= tagged(x[i], tag);
    }
    if (!ok) gather<kPieces>(p, ordinal, tag, base, x, from);
    __syncwarp();  // everybody is done with the batch before
#pragma unroll
    for (int i = 0; i < kPieces; i++) {
      if (word[i] < 0) continue;
      *reinterpret_cast<uint32_t*>(f().act[w] + word[i]) = x[i].x;
      *reinterpret_cast<uint32_t*>(f().act[w] + word[i] + 8) = x[i].z;  // the next pair: t + 1
    }
    release(pos);
    pos.next();
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

  // GEMMs of what other SMs made: attention output, dense hidden units, experts' hidden units (down). A tile is a sum over
  // the experts of the union in ascending order.
  __device__ __forceinline__ void fetched_gemm(const TaskDescriptor& d, const Layer& layer) {
    const Opcode op = static_cast<Opcode>(d.opcode);
    const bool experts = op == Opcode::kMoeDownDrain, o = op == Opcode::kOProj;
    const int k = o ? p.n_heads * p.head_dim : layer.intermediate;
    const PackPlan plan = PackPlan::of(k);
    const uint32_t tag = tag_of(p, d.layer);
    const Route& route = f().route[d.layer & 1];
    if (experts) stage(pos);  // the route is in place once the first stage is
    normed_layer = -1;
    const Batches batches(p, experts ? &route : nullptr, plan);
#pragma unroll 1
    for (int i = 0; i < d.tile_count; i++) {
      float c[2][4] = {};
#pragma unroll 1
      for (int part = 0, first = 0; part < batches.n_parts;) {
        const Batch b = batches.at(part, first);
        take(batches, b, plan, o ? p.attn : p.ffn, k, tag);
        if (part == 0) stamp(p, 5, d.layer);
#pragma unroll 1
        for (int u = b.part; u < b.end; u++) {
          uint32_t mask = ~0u;
          int column = min(g, b.n - 1);
          if (experts) {
            const RouteEntry e = route.entry[u];
            mask = e.rows >> g & 1 ? ~0u : 0u;
            column = mask ? e.begin - b.row + __popc(e.rows & ((1u << g) - 1)) : 0;
          }
          mma_run(f().act[w] + t * 8 + column * kRowBytes, b.n * kRowBytes, mask,
                  plan.tiles_per_warp, b.n_stages, c);
        }
        first = b.whole(plan.stages) ? 0 : b.first_stage + b.n_stages;
        part = b.whole(plan.stages) ? b.end : b.part;
      }
      give(c, kNoItem);
    }
  }
};

}  // namespace pointcode::mk
