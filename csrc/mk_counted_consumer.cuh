// Consumer warps in the published orders: GEMMs and attention after a wait on counters, claimed items, and the tasks that
// move rows (ADD_RMSNORM, MOE_GATHER, MOE_COMBINE).
#pragma once

#include "mk_attention.cuh"
#include "mk_counted.cuh"

namespace pointcode::mk {

template <int NB>
struct CountedConsumer : ConsumerAttention<NB, (NB > 1)> {
  using Core = ConsumerCore<NB>;
  using Core::f;
  using Core::g;
  using Core::kRowBytes;
  using Core::lane;
  using Core::next_item;
  using Core::normed_layer;
  using Core::ordinal;
  using Core::p;
  using Core::sync;
  using Core::t;
  using Core::tile;
  using Core::w;

  using ConsumerAttention<NB, (NB > 1)>::ConsumerAttention;

  // One of the eight warps polls.
  __device__ __forceinline__ void wait(const TaskDescriptor& d) {
    if (w == 0) wait_counters(p, d);
    sync();
  }
  __device__ __forceinline__ void done(const TaskDescriptor& d) {
    sync();
    if (w == 0) signal(p, d);
  }
  __device__ __forceinline__ int thread() const { return w * 32 + lane; }

  // ---------------------------------------------------------------- activations
  // Rows of `k` <= 2048 values (tagged bf16 pairs) into `act`; block row b is row rows[b], or first + b. `stride`: block rows
  // that `act` is laid out for.
  __device__ __forceinline__ void load_rows(const uint8_t* base, int k, int first,
                                            const uint8_t* rows, int n, int stride, int layer) {
    constexpr int kAtOnce = NB > 1 ? 2 : 1;
    const int n_pieces = PackPlan::of(k).k_tiles() * 4;  // of two pairs
    const uint32_t tag = tag_of(p, layer);
    sync();  // everybody is done with what lies in `act`
#pragma unroll 1
    for (int b0 = 0; b0 < n; b0 += kAtOnce) {
      uint4 x[2 * kAtOnce];
      uint32_t from[2 * kAtOnce];
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; i++) {
        const int b = b0 + i / 2, piece = thread() + 256 * (i & 1);
        from[i] = kNowhere;
        if (piece * 4 < k && b < n) from[i] = ((rows ? rows[b] : first + b) * (k / 4) + piece) * 16;
      }
      gather<2 * kAtOnce>(p, ordinal, tag, base, x, from);
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; i++) {
        const int b = b0 + i / 2, piece = thread() + 256 * (i & 1);
        if (b >= n || piece >= n_pieces) continue;
        uint8_t* word = f().act + ((piece >> 2) * stride + b) * kRowBytes + (piece & 3) * 8;
        *reinterpret_cast<uint2*>(word) = {x[i].x, x[i].z};
      }
    }
    sync();
  }

  // ---------------------------------------------------------------- claimed items
  // MOE_UPGATE_ACT_DRAIN reads the gathered rows of an expert, MOE_DOWN_DRAIN the hidden units of its pairs.
  __device__ __forceinline__ void drain_gemm(const TaskDescriptor& d, const Layer& layer) {
    const bool up = d.opcode == static_cast<int>(Opcode::kMoeUpGateActDrain);
    const int k = up ? p.hidden : layer.intermediate,
              tiles = up ? layer.intermediate / 8 : p.hidden / 16;
    const PackPlan plan = PackPlan::of(k);
    const Route& route = f().route[d.layer & 1];
    int loaded = -1, n = 1, column = 0;
    normed_layer = -1;
#pragma unroll 1
    while (true) {
      const int item = next_item();
      if (item == kNoItem) return this->end_of_items();
      if (item / tiles != loaded) {
        loaded = item / tiles;
        const RouteEntry e = route.entry[loaded];
        n = __popc(e.rows);
        column =
            e.rows >> g & 1 ? __popc(e.rows & ((1u << g) - 1)) : 0;  // others' results are not read
        load_rows(up ? p.moe_in : p.ffn, k, e.begin, up ? nullptr : route.pair + e.begin, n, n,
                  d.layer);
      }
      tile(plan, f().act + column * kRowBytes + t * 8, n * kRowBytes, item);
    }
  }

  // ATTN_DRAIN: an item's pages follow it.
  __device__ __forceinline__ void drain_attention(const TaskDescriptor& d) {
    const int width = p.n_heads / p.n_kv_heads * p.head_dim;
#pragma unroll 1
    while (true) {
      const int item = next_item();
      if (item == kNoItem) return;
      TaskDescriptor part = d;
      part.split = item % d.n_splits, part.tile_begin = item / d.n_splits % p.n_kv_heads;
      const int row = item / d.n_splits / p.n_kv_heads, piece = thread();
      if (piece * 4 < width) {
        const uint32_t from[1] = {
            static_cast<uint32_t>((row * p.n_kv_heads + part.tile_begin) * width * 4 + piece * 16)};
        uint4 x[1];
        gather<1>(p, ordinal, tag_of(p, d.layer), p.q, x, from);
        *reinterpret_cast<uint2*>(&f().q[piece * 4 / p.head_dim][piece * 4 % p.head_dim]) = {
            x[0].x, x[0].z};
      }
      sync();
      this->attend(part, row, page_range<NB>(p, row, d.flags & kFlagSliding, part.split), 0, [] {});
    }
  }

  // ---------------------------------------------------------------- rows
  // Where piece `i` of this thread is in a tagged fp32 row: a pair of values, pieces of a thread 256 apart.
  __device__ __forceinline__ uint32_t piece_of(int row, int i) const {
    const int piece = thread() + 256 * i;
    return piece * 2 < p.hidden ? (row * p.hidden / 2 + piece) * 16 : kNowhere;
  }
  __device__ __forceinline__ void load_row(const uint8_t* base, int row, uint32_t tag, bool wanted,
                                           uint4 (&raw)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t at = piece_of(row, i);
      raw[i] = {0, tag, 0, tag};
      if (wanted && at != kNowhere) raw[i] = load_volatile(base + at);
    }
  }
  // Adds what load_row has asked for, once it is there.
  __device__ __forceinline__ void add_row(const uint8_t* base, int row, uint32_t tag,
                                          uint4 (&raw)[4], float2 (&x)[4]) const {
    this->settle_pieces(tag, raw, [&](int i) { return base + piece_of(row, i); });
#pragma unroll
    for (int i = 0; i < 4; i++)
      x[i].x += __uint_as_float(raw[i].x), x[i].y += __uint_as_float(raw[i].z);
  }
  // ADD_RMSNORM: residual += o_out, += ffn_out; normed = RMSNorm(residual) x weight. Everybody waits for it, so all that it
  // reads is on its way together.
  __device__ __forceinline__ void add_norm(const TaskDescriptor& d, int row) {
    const float* weight = (d.flags & kFlagFinal) ? p.final_norm : p.layers[d.layer].norm;
    const uint32_t tag = tag_of(p, d.layer);
    // Layer 0 starts from the embedding, which has its tag.
    const uint32_t before = tag_of(p, max(d.layer - 1, 0));
    const bool adds_attn = d.flags & kFlagAddAttn, adds_ffn = d.flags & kFlagAddFfn;
    float2 x[4] = {}, wt[4] = {};
    uint4 raw[3][4];
    load_row(p.residual, row, before, true, raw[0]);
    load_row(p.o_out, row, before, adds_attn, raw[1]);
    load_row(p.ffn_out, row, before, adds_ffn, raw[2]);
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (piece_of(row, i) != kNowhere)
        wt[i] = __ldg(reinterpret_cast<const float2*>(weight) + thread() + 256 * i);
    add_row(p.residual, row, before, raw[0], x);
    add_row(p.o_out, row, before, raw[1], x);
    add_row(p.ffn_out, row, before, raw[2], x);
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) squares += x[i].x * x[i].x + x[i].y * x[i].y;
    squares = warp_sum(squares);
    if (lane == 0) f().square_sum[0][0][w] = squares;
    sync();
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kConsumers; i++) sum += f().square_sum[0][0][i];
    const float scale = rsqrtf(sum / p.hidden + p.eps);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int piece = thread() + 256 * i;
      if (piece * 2 >= p.hidden) continue;
      const int at = row * p.hidden + piece * 2;
      if (adds_attn || adds_ffn)
        put(p.residual, at, x[i].x, tag), put(p.residual, at + 1, x[i].y, tag);
      put(p.normed, operand_at(at / 2),
          pack_bf16(x[i].x * scale * wt[i].x, x[i].y * scale * wt[i].y), tag);
    }
    sync();  // square_sum is free again
  }

  // MOE_GATHER: row `pair` of moe_in is the normed row of the pair.
  __device__ __forceinline__ void gather_pair(const TaskDescriptor& d, int pair) {
    const uint32_t tag = tag_of(p, d.layer);
    const int pieces = p.hidden / 4;
    int row = 0;
    if constexpr (NB > 1) {  // a single row is every pair's
      const int word = kRoutePairs + pair / 4;
      const uint32_t at[1] = {static_cast<uint32_t>(word / 2) * 16};
      uint4 route[1];
      gather<1>(p, ordinal, tag, p.route, route, at);
      const uint32_t four = word & 1 ? route[0].z : route[0].x;
      row = static_cast<int>(four >> (pair % 4 * 8) & 255) / p.top_k;
    }
    uint4 x[2];
    uint32_t from[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
      from[i] = thread() + 256 * i < pieces ? (row * pieces + thread() + 256 * i) * 16 : kNowhere;
    gather<2>(p, ordinal, tag, p.normed, x, from);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (from[i] == kNowhere) continue;
      const int out = (pair * pieces + thread() + 256 * i) * 2;
      put(p.moe_in, out, x[i].x, tag), put(p.moe_in, out + 1, x[i].z, tag);
    }
  }

  // MOE_COMBINE: part of a row's sum over its slots, in order.
  __device__ __forceinline__ void combine_slots(const TaskDescriptor& d, int row) {
    const uint32_t tag = tag_of(p, d.layer);
    const int end = p.hidden * (d.split + 1) / d.n_splits;
#pragma unroll 1
    for (int at = p.hidden * d.split / d.n_splits + thread(); at < end; at += 256) {
      uint4 x[kMaxTopK];
      uint32_t from[kMaxTopK];
#pragma unroll
      for (int s = 0; s < kMaxTopK; s++)
        from[s] = s < p.top_k ? ((row * p.top_k + s) * p.hidden + (at & ~1)) * 8 : kNowhere;
      gather<kMaxTopK>(p, ordinal, tag, p.moe_out, x, from);
      float sum = 0.f;
#pragma unroll
      for (int s = 0; s < kMaxTopK; s++)
        if (s < p.top_k) sum += __uint_as_float(at & 1 ? x[s].z : x[s].x);
      put(p.ffn_out, row * p.hidden + at, sum, tag);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void rows(const TaskDescriptor& d) {
    const Opcode op = static_cast<Opcode>(d.opcode);
#pragma unroll 1
    for (int i = d.tile_begin; i < d.tile_begin + d.tile_count; i++) {
      if (op == Opcode::kAddRmsNorm)
        add_norm(d, i);
      else if (op == Opcode::kMoeGather)
        gather_pair(d, i);
      else
        combine_slots(d, i);
    }
    done(d);
  }

  // ---------------------------------------------------------------- the walk
  __device__ __forceinline__ void task(const TaskDescriptor& d) {
    switch (static_cast<Opcode>(d.opcode)) {
      case Opcode::kAddRmsNorm:
      case Opcode::kMoeGather:
      case Opcode::kMoeCombine:
        rows(d);
        break;
      case Opcode::kAttnDecode:
        this->attention(d);
        done(d);
        break;
      case Opcode::kAttnDrain:
        drain_attention(d);
        done(d);
        break;
      case Opcode::kMoeUpGateActDrain:
      case Opcode::kMoeDownDrain:
        drain_gemm(d, p.layers[d.layer]);
        break;
      case Opcode::kOProj:
      case Opcode::kFfnDown:
        this->template fetched_gemm<false>(d, p.layers[d.layer]);
        break;
      default:
        if (normed_layer != d.layer)
          load_rows(p.normed, p.hidden, 0, nullptr, p.n_rows, NB, d.layer);
        normed_layer = d.layer;
        this->normed_gemm(d);
    }
  }
  __device__ __forceinline__ void loop(int n_tasks) {
    DescriptorReader<NB> reader;
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open(p);
      ordinal = d.ordinal;
      if (!is_combiners(static_cast<Opcode>(d.opcode))) {
        wait(d);
        task(d);
      }
      reader.close();
    }
  }
};

}  // namespace pointcode::mk
