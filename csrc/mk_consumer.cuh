// The eight consumer warps: tensor-core tiles over ring stages, and attention over KV pages.
// Warp w takes k-tiles w * tiles_per_warp .. of every stage, so each warp needs only its own 1/8 of an activation and a
// row's sums are grouped the same way whatever else is in the batch.
#pragma once

#include "mk_combine.cuh"
#include "mk_route.cuh"

namespace pointcode::mk {

template <int NB>
struct Consumer {
  static constexpr int kStages = Smem<NB>::kStages;
  static constexpr int kRowBytes = 32;  // one row's 16 values of a k-tile, as four (b0, b1) pairs
  Smem<NB>& s;
  const Params& p;
  const int w, lane, g, t;
  Where at{};
  RingPos<kStages> pos{};
  uint32_t units = 0, syncs = 0;
  int normed_layer = -1;  // layer whose normed input lies in `act`

  __device__ Consumer(Smem<NB>& smem, const Params& params)
      : s(smem), p(params), w((threadIdx.x >> 5) - kFirstConsumer), lane(threadIdx.x & 31), g(lane >> 2), t(lane & 3) {}

  // ---------------------------------------------------------------- ring, reduction, warp sync
  __device__ __forceinline__ const uint4* stage(const RingPos<kStages>& at_pos) {
    mbar_wait(at, &s.ring_full[at_pos.slot], at_pos.phase, WaitKind::kRingFull);
    return reinterpret_cast<const uint4*>(s.ring[at_pos.slot]) + lane;
  }
  __device__ __forceinline__ void release(const RingPos<kStages>& at_pos) {
    __syncwarp();
    if (lane == 0) mbar_arrive(&s.ring_empty[at_pos.slot]);
  }
  __device__ __forceinline__ void sync() {
    __syncwarp();
    if (lane == 0) mbar_arrive(&s.f.warp_sync);
    mbar_wait(at, &s.f.warp_sync, syncs & 1, WaitKind::kWarpSync);
    syncs++;
  }
  // Hands this warp's partial 16 x 8 tile to the storer.
  __device__ __forceinline__ void give(const float (&c)[2][4]) {
    constexpr int kSlots = Fixed<NB>::kRedSlots;
    const int b = units % kSlots;
    if (units >= kSlots) mbar_wait(at, &s.f.red_empty[b], ((units / kSlots) - 1) & 1, WaitKind::kReduceEmpty);
    float(*out)[NB] = s.f.red[b][w];
    if constexpr (NB == 1) {
      if (t == 0) out[g][0] = c[0][0] + c[1][0], out[g + 8][0] = c[0][2] + c[1][2];
    } else if (2 * t < NB) {
      *reinterpret_cast<float2*>(&out[g][2 * t]) = {c[0][0] + c[1][0], c[0][1] + c[1][1]};
      *reinterpret_cast<float2*>(&out[g + 8][2 * t]) = {c[0][2] + c[1][2], c[0][3] + c[1][3]};
    }
    __syncwarp();
    if (lane == 0) mbar_arrive(&s.f.red_full[b]);
    units++;
  }

  // One stage against this warp's k-tiles of the activation at `x` ((k-tile, row) blocks of 32 bytes; `index`: the block
  // row of this lane's batch row, `n`: block rows per k-tile). Columns without a row read zeros.
  __device__ __forceinline__ void mma_stage(const uint8_t* x, int n, int index, bool live, int k_tiles, float (&c)[2][4]) {
    const uint4* a = stage(pos) + w * k_tiles * 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i < k_tiles) {
        uint2 b = {0u, 0u};
        if (live) b = *reinterpret_cast<const uint2*>(x + (i * n + index) * kRowBytes + t * 8);
        mma_bf16(c[i & 1], a[i * 32], b.x, b.y);
      }
    }
    release(pos);
    pos.next();
  }

  // Where payload pair `j` (pairs of k-tile j / 8) of block row `row` lies in `act`.
  __device__ __forceinline__ uint8_t* act_word(int j, int n, int row) {
    const int pair = j & 7;
    return s.f.act[w] + ((j >> 3) * n + row) * kRowBytes + (pair & 3) * 8 + (pair >> 2) * 4;
  }

  // ---------------------------------------------------------------- activations
  // residual x norm weight, unscaled (the storer applies 1 / rms), and this warp's share of the sum of squares.
  __device__ void norm(int layer) {
    const PackPlan plan = PackPlan::of(p.hidden);
    const float* weight = layer == p.n_layers ? p.final_norm : p.layers[layer].norm;
    const int per_stage = plan.tiles_per_warp * 8, n_pairs = plan.stages * per_stage;  // <= 128
    const uint32_t tag = tag_of(p, layer);
#pragma unroll 1
    for (int r = 0; r < p.n_rows; r++) {
      uint4 x[4];
      int pair[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int j = lane + 32 * i;
        pair[i] = (j / per_stage * kConsumers + w) * per_stage + j % per_stage;
        if (j >= n_pairs || pair[i] * 2 >= p.hidden) pair[i] = -1;
      }
      const uint8_t* base = p.residual + static_cast<size_t>(r) * p.hidden * 8;
      gather<4>(at, tag, x, [&](int i) { return base + pair[i] * 16; }, [&](int i) { return pair[i] >= 0; });
      float squares = 0.f;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int j = lane + 32 * i;
        if (j >= n_pairs) continue;
        uint32_t word = 0;
        if (pair[i] >= 0) {
          const float2 wt = __ldg(reinterpret_cast<const float2*>(weight) + pair[i]);
          const float a = __uint_as_float(x[i].x), b = __uint_as_float(x[i].z);
          squares += a * a + b * b;
          word = pack_bf16(a * wt.x, b * wt.y);
        }
        *reinterpret_cast<uint32_t*>(act_word(j, NB, r)) = word;
      }
#pragma unroll
      for (int i = 16; i; i >>= 1) squares += __shfl_xor_sync(~0u, squares, i);
      if (lane == 0) s.f.square_sum[layer & 1][r][w] = squares;
    }
    __syncwarp();
    normed_layer = layer;
  }

  __device__ __forceinline__ void need_norm(int layer) {
    if (normed_layer != layer) {
      stamp(p, 0, layer);
      norm(layer);
      stamp(p, 1, layer);
    }
  }

  // `count` tiles of a matrix whose input is the normed residual.
  __device__ void normed_tiles(int count) {
    const PackPlan plan = PackPlan::of(p.hidden);
#pragma unroll 1
    for (int i = 0; i < count; i++) {
      float c[2][4] = {};
#pragma unroll 1
      for (int j = 0; j < plan.stages; j++)
        mma_stage(s.f.act[w] + j * plan.tiles_per_warp * NB * kRowBytes, NB, g, g < NB, plan.tiles_per_warp, c);
      give(c);
    }
  }

  // Copies pieces of tagged bf16 activations of width k into `act`: `n` block rows of `n_stages` stages; block row b comes
  // from payload index source(b). Pieces are 16 bytes: two pairs; those in the padding of k are zero.
  template <class Source>
  __device__ __forceinline__ void fetch(uint32_t tag, const uint8_t* base, int k, int n, int first_stage, int n_stages,
                                        Source source) {
    const int k_tiles = PackPlan::of(k).tiles_per_warp, per_stage = k_tiles * 4, per_row = n_stages * per_stage, total = n * per_row;
#pragma unroll 1
    for (int start = 0; start < total; start += 128) {
      uint4 x[4];
      const uint8_t* from[4];
      int j[4], row[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int piece = start + lane + 32 * i;
        from[i] = nullptr, row[i] = -1, x[i] = {};
        if (piece >= total) continue;
        row[i] = piece / per_row;
        const int in_row = piece % per_row, st = in_row / per_stage, off = in_row % per_stage;
        j[i] = (st * per_stage + off) * 2;
        const int pair = (((first_stage + st) * kConsumers + w) * per_stage + off) * 2;
        if (pair * 2 < k) from[i] = base + (static_cast<size_t>(source(row[i])) + pair) * 8;
      }
      gather<4>(at, tag, x, [&](int i) { return from[i]; }, [&](int i) { return from[i] != nullptr; });
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (row[i] < 0) continue;
        *reinterpret_cast<uint32_t*>(act_word(j[i], n, row[i])) = x[i].x;
        *reinterpret_cast<uint32_t*>(act_word(j[i] + 1, n, row[i])) = x[i].z;
      }
    }
    __syncwarp();
  }

  // Tiles of a matrix whose input is one activation per batch row (attention output, dense hidden).
  __device__ void dense_tiles(const TaskDescriptor& d, const uint8_t* source, int k) {
    const PackPlan plan = PackPlan::of(k);
    const int chunk = min(plan.stages, Fixed<NB>::kActBytes / (p.n_rows * plan.tiles_per_warp * kRowBytes));
    const uint32_t tag = tag_of(p, d.layer);
    normed_layer = -1;
#pragma unroll 1
    for (int i = 0; i < d.tile_count; i++) {
      float c[2][4] = {};
#pragma unroll 1
      for (int first = 0; first < plan.stages; first += chunk) {
        const int n = min(chunk, plan.stages - first);
        fetch(tag, source, k, p.n_rows, first, n, [&](int row) { return row * (k / 2); });
#pragma unroll 1
        for (int j = 0; j < n; j++)
          mma_stage(s.f.act[w] + j * plan.tiles_per_warp * p.n_rows * kRowBytes, p.n_rows, g, g < p.n_rows, plan.tiles_per_warp, c);
        __syncwarp();
      }
      give(c);
    }
  }

  __device__ void expert_upgate(const TaskDescriptor& d, int intermediate) {
    mbar_wait(at, &s.ring_full[pos.slot], pos.phase, WaitKind::kRingFull);  // then the route is in place
    const int2 items = slice(d, s.f.route[d.layer & 1], intermediate / 8);
    normed_tiles(items.y - items.x);
  }

  // Sum over the union of experts, ascending; a batch of experts with few (row, slot) pairs is fetched at once.
  __device__ void expert_down(const TaskDescriptor& d, int intermediate) {
    const PackPlan plan = PackPlan::of(intermediate);
    const int k_tiles = plan.stages * plan.tiles_per_warp, max_pairs = Fixed<NB>::kActBytes / (k_tiles * kRowBytes);
    const uint32_t tag = tag_of(p, d.layer);
    normed_layer = -1;
    mbar_wait(at, &s.ring_full[pos.slot], pos.phase, WaitKind::kRingFull);  // then the route is in place
    const Route& route = s.f.route[d.layer & 1];
#pragma unroll 1
    for (int i = 0; i < d.tile_count; i++) {
      float c[2][4] = {};
      int u = 0;
#pragma unroll 1
      while (u < route.n_experts) {
        const int first_pair = route.entry[u].begin;
        int last = u, n = 0;
        while (last < route.n_experts && n + __popc(route.entry[last].rows) <= max_pairs) n += __popc(route.entry[last++].rows);
        fetch(tag, p.ffn, intermediate, n, 0, plan.stages,
              [&](int b) { return route.pair[first_pair + b] * (intermediate / 2); });
#pragma unroll 1
        for (; u < last; u++) {
          const RouteEntry e = route.entry[u];
          const bool live = e.rows >> g & 1;
          const int index = e.begin - first_pair + __popc(e.rows & ((1u << g) - 1));
#pragma unroll 1
          for (int j = 0; j < plan.stages; j++)
            mma_stage(s.f.act[w] + j * plan.tiles_per_warp * n * kRowBytes, n, index, live, plan.tiles_per_warp, c);
        }
        __syncwarp();
      }
      give(c);
    }
  }

  // ---------------------------------------------------------------- attention
  // One split of one row's pages for the query heads of one KV head: two pages (128 tokens) at a time.
  __device__ void attend(const TaskDescriptor& d, int row) {
    const int hd = p.head_dim, heads = p.n_heads / p.n_kv_heads, group = d.tile_begin, k_tiles = hd / 16;
    const PageRange range = page_range(p, row, d.flags & kFlagSliding, d.split);
    const uint32_t tag = tag_of(p, d.layer);
    const int n_pieces = heads * hd / 4;  // 16-byte pieces of four values
#pragma unroll 1
    for (int piece = w * 32 + lane; piece < n_pieces; piece += kConsumers * 32) {
      uint4 x[1];
      const uint8_t* from = p.q + (static_cast<size_t>(row) * p.n_kv_heads + group) * heads * hd * 4 + piece * 16;
      gather<1>(at, tag, x, [&](int) { return from; }, [](int) { return true; });
      const int head = piece * 4 / hd, dim = piece * 4 % hd;
      *reinterpret_cast<uint2*>(&s.f.q[head][dim]) = {x[0].x, x[0].z};
    }
    sync();
    float m = -INFINITY, sum = 0.f, acc[4] = {};  // m, sum: of head w; acc: dims 16 w ..
#pragma unroll 1
    for (int page = range.begin; page < range.end; page += 2) {
      const bool two = page + 1 < range.end;
      scores(range, page, two, k_tiles);
      sync();
      if (w < heads) softmax(two, m, sum);
      sync();
      values(range, page, two, k_tiles, acc);
    }
    uint8_t* out = part_of(p, row, group, d.split);
    const size_t stride = part_stride(hd);
    if (w < k_tiles) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int head = 2 * t + (i & 1), dim = w * 16 + g + (i >> 1) * 8;
        if (head < heads) put(out + head * stride, dim, acc[i], tag);
      }
    }
    if (lane == 0 && w < heads) put(out + w * stride, hd, m, tag), put(out + w * stride, hd + 1, sum, tag);
    sync();  // q is free again
  }

  // scores[head][token] of up to two pages; keys outside the window or past the row's end become -inf.
  __device__ __forceinline__ void scores(const PageRange& range, int page, bool two, int k_tiles) {
    const int half = w >> 2, tile = w & 3;
    const auto k_pos = pos.ahead(2 * half);
    if (half == 0 || two) {
      const uint4* a = stage(k_pos) + tile * k_tiles * 32;
      float c[2][4] = {};
#pragma unroll
      for (int k = 0; k < kMaxHeadDim / 16; k++) {
        if (k >= k_tiles) break;
        const uint32_t* q = reinterpret_cast<const uint32_t*>(&s.f.q[g][k * 16 + 2 * t]);
        mma_bf16(c[k & 1], a[k * 32], q[0], q[4]);
      }
      const int token = half * 64 + tile * 16 + g, key = page * kPageTokens + token;
      const bool ok0 = key >= range.first_key && key < range.position;
      const bool ok1 = key + 8 >= range.first_key && key + 8 < range.position;
      s.f.score[2 * t][token] = ok0 ? c[0][0] + c[1][0] : -INFINITY;
      s.f.score[2 * t + 1][token] = ok0 ? c[0][1] + c[1][1] : -INFINITY;
      s.f.score[2 * t][token + 8] = ok1 ? c[0][2] + c[1][2] : -INFINITY;
      s.f.score[2 * t + 1][token + 8] = ok1 ? c[0][3] + c[1][3] : -INFINITY;
    }
    release(pos);
    if (two) release(pos.ahead(2));
  }

  // Warp w: head w. Base-2 softmax over up to 128 scores (q carries log2 e).
  __device__ __forceinline__ void softmax(bool two, float& m, float& sum) {
    float x[4], top = m;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x[i] = i < 2 || two ? s.f.score[w][lane + 32 * i] : -INFINITY;
      top = fmaxf(top, x[i]);
    }
#pragma unroll
    for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
    const float base = top == -INFINITY ? 0.f : top, correction = exp2f(m - base);
    float part = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float e = exp2f(x[i] - base);
      part += e;
      s.f.prob[w][lane + 32 * i] = __float2bfloat16(e);
    }
#pragma unroll
    for (int i = 16; i; i >>= 1) part += __shfl_xor_sync(~0u, part, i);
    m = top, sum = sum * correction + part;
    if (lane == 0) s.f.correction[w] = correction;
  }

  // acc[dim][head] += V^T p. On a page that is not full, tokens without a key are masked out of V: it may hold anything.
  __device__ __forceinline__ void values(const PageRange& range, int page, bool two, int k_tiles, float (&acc)[4]) {
    if (w < k_tiles) {
      const float c0 = s.f.correction[2 * t], c1 = s.f.correction[2 * t + 1];
      acc[0] *= c0, acc[1] *= c1, acc[2] *= c0, acc[3] *= c1;
    }
#pragma unroll 1
    for (int h = 0; h < 1 + two; h++) {
      const auto v_pos = pos.ahead(1 + 2 * h);
      const uint4* a = stage(v_pos) + w * 4 * 32;
      const int first = (page + h) * kPageTokens;
      const bool whole = first >= range.first_key && first + kPageTokens <= range.position;
      if (w < k_tiles) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
          uint4 v = a[k * 32];
          if (!whole) {
            const int key = first + k * 16 + 2 * t;
            v.x &= key_mask(range, key), v.y &= key_mask(range, key);
            v.z &= key_mask(range, key + 8), v.w &= key_mask(range, key + 8);
          }
          const uint32_t* q = reinterpret_cast<const uint32_t*>(&s.f.prob[g][h * 64 + k * 16 + 2 * t]);
          mma_bf16(acc, v, q[0], q[4]);
        }
      }
      release(v_pos);
    }
    pos = pos.ahead(two ? 4 : 2);
  }
  // Keeps the low half if `key` is attended and the high half if `key + 1` is.
  __device__ __forceinline__ static uint32_t key_mask(const PageRange& range, int key) {
    const auto ok = [&](int k) { return k >= range.first_key && k < range.position; };
    return (ok(key) ? 0x0000ffffu : 0u) | (ok(key + 1) ? 0xffff0000u : 0u);
  }

  // ---------------------------------------------------------------- the walk
  __device__ void loop(int n_tasks) {
    DescriptorReader<NB> reader{s, {&p}};
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open();
      at = reader.at;
      const int intermediate = d.layer < p.n_layers ? p.layers[d.layer].intermediate : 0;
      if (d.flags & kFlagFusedNorm) need_norm(d.layer);
      switch (static_cast<Opcode>(d.opcode)) {
        case Opcode::kRouterGemm:
        case Opcode::kQkvProj:
        case Opcode::kFfnUpGateAct:
        case Opcode::kLmHead: normed_tiles(d.tile_count); stamp(p, 2, d.layer); break;
        case Opcode::kAttnDecode:
#pragma unroll 1
          for (int r = 0; r < p.n_rows; r++) attend(d, r);
          stamp(p, 3, d.layer);
          break;
        case Opcode::kOProj: dense_tiles(d, p.attn, p.n_heads * p.head_dim); stamp(p, 6, d.layer); break;
        case Opcode::kFfnDown: dense_tiles(d, p.ffn, intermediate); stamp(p, 7, d.layer); break;
        case Opcode::kMoeUpGateActDrain: expert_upgate(d, intermediate); stamp(p, 4, d.layer); break;
        case Opcode::kMoeDownDrain: expert_down(d, intermediate); stamp(p, 7, d.layer); break;
        default: break;
      }
      reader.close();
    }
  }
};

}  // namespace pointcode::mk
