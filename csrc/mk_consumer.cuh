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
  const Params& p;
  const int w, lane, g, t;
  RingPos<kStages> pos{};
  uint32_t units = 0, syncs = 0;
  int ordinal = -1;
  int normed_layer = -1;  // layer whose normed input lies in `act`

  __device__ explicit Consumer(const Params& params)
      : p(params), w((threadIdx.x >> 5) - kFirstConsumer), lane(threadIdx.x & 31), g(lane >> 2), t(lane & 3) {}

  __device__ __forceinline__ static Fixed<NB>& f() { return smem<NB>().f; }

  // ---------------------------------------------------------------- ring, reduction, warp sync
  __device__ __forceinline__ const uint4* stage(const RingPos<kStages>& at_pos) {
    mbar_wait(p, &smem<NB>().ring_full[at_pos.slot], at_pos.phase, ordinal, WaitKind::kRingFull);
    return reinterpret_cast<const uint4*>(smem<NB>().ring[at_pos.slot]) + lane;
  }
  __device__ __forceinline__ void release(const RingPos<kStages>& at_pos) {
    __syncwarp();
    if (lane == 0) mbar_arrive(&smem<NB>().ring_empty[at_pos.slot]);
  }
  __device__ __forceinline__ void sync() {
    __syncwarp();
    if (lane == 0) mbar_arrive(&f().warp_sync);
    mbar_wait(p, &f().warp_sync, syncs++ & 1, ordinal, WaitKind::kWarpSync);
  }
  // Hands this warp's partial 16 x 8 tile to the storer.
  __device__ __forceinline__ void give(const float (&c)[2][4], int item) {
    constexpr int kSlots = Fixed<NB>::kRedSlots;
    const int b = units % kSlots;
    if (units >= kSlots) mbar_wait(p, &f().red_empty[b], ((units / kSlots) - 1) & 1, ordinal, WaitKind::kReduceEmpty);
    float(*out)[NB] = f().red[b][w];
    if constexpr (NB == 1) {
      if (t == 0) out[g][0] = c[0][0] + c[1][0], out[g + 8][0] = c[0][2] + c[1][2];
    } else if (2 * t < NB) {
      *reinterpret_cast<float2*>(&out[g][2 * t]) = {c[0][0] + c[1][0], c[0][1] + c[1][1]};
      *reinterpret_cast<float2*>(&out[g + 8][2 * t]) = {c[0][2] + c[1][2], c[0][3] + c[1][3]};
    }
    if (w == 0 && lane == 0) f().red_item[b] = item;
    __syncwarp();
    if (lane == 0) mbar_arrive(&f().red_full[b]);
    units++;
  }

  // kStagesAtOnce stages against this warp's k-tiles of the activation; `x` is this lane's fragment in the first of them,
  // `mask` 0 for a column that must not count. Four k-tiles a stage without a branch between them; those past k_tiles count
  // nothing. All loads are issued before the first product: the latency of a stage is what limits a consumer.
  template <int kStagesAtOnce>
  __device__ __forceinline__ void mma_stages(const uint8_t* x, int stride, uint32_t mask, int k_tiles, float (&c)[2][4]) {
    uint4 av[4 * kStagesAtOnce];
    uint2 bv[4 * kStagesAtOnce];
#pragma unroll
    for (int h = 0; h < kStagesAtOnce; h++) {
      const uint4* a = stage(pos.ahead(h)) + w * k_tiles * 32;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int j = min(i, k_tiles - 1);
        av[h * 4 + i] = a[j * 32];
        bv[h * 4 + i] = *reinterpret_cast<const uint2*>(x + (h * k_tiles + j) * stride);
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * kStagesAtOnce; i++) {
      const uint32_t m = (i & 3) < k_tiles ? mask : 0u;
      mma_bf16(c[i & 1], av[i], bv[i].x & m, bv[i].y & m);
    }
    __syncwarp();
#pragma unroll
    for (int h = 0; h < kStagesAtOnce; h++) {
      if (lane == 0) mbar_arrive(&smem<NB>().ring_empty[pos.slot]);
      pos.next();
    }
  }
  // `n` stages that lie one after the other in `act`.
  __device__ __forceinline__ void mma_run(const uint8_t* x, int stride, uint32_t mask, int k_tiles, int n, float (&c)[2][4]) {
#pragma unroll 1
    for (; n >= 2; n -= 2, x += 2 * k_tiles * stride) mma_stages<2>(x, stride, mask, k_tiles, c);
    if (n) mma_stages<1>(x, stride, mask, k_tiles, c);
  }

  // Where payload pair `j` (pairs of k-tile j / 8) of block row `row` lies in `act`.
  __device__ __forceinline__ uint8_t* act_word(int j, int n, int row) const {
    const int pair = j & 7;
    return f().act[w] + ((j >> 3) * n + row) * kRowBytes + (pair & 3) * 8 + (pair >> 2) * 4;
  }

  // ---------------------------------------------------------------- activations
  // residual x norm weight, unscaled (the storer applies 1 / rms), and this warp's share of the sum of squares.
  __device__ __forceinline__ void norm(int layer) {
    constexpr int kAtOnce = NB > 1 ? 2 : 1;  // rows whose loads are in flight together
    const PackPlan plan = PackPlan::of(p.hidden);
    const float* weight = layer == p.n_layers ? p.final_norm : p.layers[layer].norm;
    const int per_stage = plan.tiles_per_warp * 8, n_pairs = plan.stages * per_stage;  // <= 128
    const uint32_t tag = tag_of(p, layer);
    float2 wt[4];
    int pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int j = lane + 32 * i, st = j / per_stage;
      pair[i] = (st * kConsumers + w) * per_stage + j - st * per_stage;
      if (j >= n_pairs || pair[i] * 2 >= p.hidden) pair[i] = -1;
      wt[i] = pair[i] < 0 ? float2{0.f, 0.f} : __ldg(reinterpret_cast<const float2*>(weight) + pair[i]);
    }
#pragma unroll 1
    for (int r0 = 0; r0 < p.n_rows; r0 += kAtOnce) {
      uint4 x[4 * kAtOnce];
      uint32_t from[4 * kAtOnce];
#pragma unroll
      for (int i = 0; i < 4 * kAtOnce; i++) {
        const int r = r0 + i / 4;
        from[i] = pair[i & 3] < 0 || r >= p.n_rows ? kNowhere : (r * p.hidden / 2 + pair[i & 3]) * 16;
      }
      gather<4 * kAtOnce>(p, ordinal, tag, p.residual, x, from);
#pragma unroll
      for (int h = 0; h < kAtOnce; h++) {
        const int r = r0 + h;
        if (r >= p.n_rows) break;
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float a = __uint_as_float(x[h * 4 + i].x), b = __uint_as_float(x[h * 4 + i].z);
          squares += a * a + b * b;
          if (lane + 32 * i < n_pairs) *reinterpret_cast<uint32_t*>(act_word(lane + 32 * i, NB, r)) = pack_bf16(a * wt[i].x, b * wt[i].y);
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
  struct Fetch {  // the same for all batches of a task; mine, off: this lane's unit in a load and its piece in the unit
    const uint8_t* base;
    int k, per_stage, units, mine, off;
  };
  // Starts the loads of a batch; `settle` finishes them. In between the warp works on the batch before.
  __device__ __forceinline__ void start(const Fetch& f, const Batch& b, uint32_t tag, uint4 (&x)[kAtOnce], uint32_t (&from)[kAtOnce],
                                        int (&word)[kAtOnce]) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int unit = i * f.units + f.mine, row = unit * b.per_stages >> 16, st = unit - row * b.n_stages;
      const int pair = (((b.first_stage + st) * kConsumers + w) * f.per_stage + f.off) * 2;
      from[i] = kNowhere, word[i] = -1, x[i] = {0, tag, 0, tag};
      if (f.mine >= f.units || row >= b.n) continue;
      word[i] = ((st * (f.per_stage >> 2) + (f.off >> 2)) * b.n + row) * kRowBytes + (f.off & 1) * 16 + (f.off >> 1 & 1) * 4;
      if (pair * 2 >= f.k) continue;  // the padding of k
      from[i] = ((b.rows ? b.rows[row] : row) * (f.k / 2) + pair) * 8;
      x[i] = load_volatile(f.base + from[i]);
    }
  }
  __device__ __forceinline__ void settle(const Fetch& fetch, uint32_t tag, uint4 (&x)[kAtOnce], const uint32_t (&from)[kAtOnce],
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
    const uint8_t* x = f().act[w] + t * 8 + g % NB * kRowBytes;  // columns past the batch repeat rows; nobody reads them
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
  __device__ __forceinline__ Batch batch_at(bool experts, int fits, const Route& route, int n_parts, int stages, int& part) const {
    Batch b = {nullptr, p.n_rows, part, 1, 0};
    if (experts) {
      b.rows = route.pair + route.entry[part].begin, b.n = 0, b.first_stage = 0, b.n_stages = stages;
      while (part < n_parts && (b.n + __popc(route.entry[part].rows)) * stages <= fits) b.n += __popc(route.entry[part++].rows);
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
    const Fetch fetch = {op == Opcode::kOProj ? p.attn : p.ffn, k, per_stage, units, lane / per_stage, lane % per_stage};
    if (experts) stage(pos);  // the route is in place once the first stage is
    normed_layer = -1;
    const int n_parts = experts ? route.n_experts : plan.stages;
#pragma unroll 1
    for (int i = 0; i < d.tile_count; i++) {
      float c[2][4] = {};
      uint4 x[kAtOnce];
      uint32_t from[kAtOnce];
      int word[kAtOnce], part = 0, next = 0, n = 1;  // parts [part, last) lie in `act`, n block rows
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

  // ---------------------------------------------------------------- attention
  // One split of every row's pages for the query heads of one KV head: two pages (128 tokens) at a time. The next row's
  // q is on its way while a row is worked on.
  __device__ __forceinline__ void attention(const TaskDescriptor& d) {
    const int width = p.n_heads / p.n_kv_heads * p.head_dim, piece = w * 32 + lane;  // one 16-byte piece of q per thread
    const uint8_t* from = piece * 4 < width ? p.q + static_cast<size_t>(d.tile_begin) * width * 4 + piece * 16 : nullptr;
    const size_t stride = static_cast<size_t>(p.n_kv_heads) * width * 4;
    const uint32_t tag = tag_of(p, d.layer);
    uint4 x = from ? load_volatile(from) : uint4{};
#pragma unroll 1
    for (int r = 0; r < p.n_rows; r++) {
      if (from) {
        if (!tagged(x, tag)) {
          uint4 again[1];
          const uint32_t at[1] = {0};
          gather<1>(p, ordinal, tag, from, again, at);
          x = again[0];
        }
        *reinterpret_cast<uint2*>(&f().q[piece * 4 / p.head_dim][piece * 4 % p.head_dim]) = {x.x, x.z};
        from += stride;
        if (r + 1 < p.n_rows) x = load_volatile(from);
      }
      sync();
      attend(d, r);
    }
  }

  __device__ __forceinline__ void attend(const TaskDescriptor& d, int row) {
    const int hd = p.head_dim, heads = p.n_heads / p.n_kv_heads, group = d.tile_begin, k_tiles = hd / 16;
    const PageRange range = page_range(p, row, d.flags & kFlagSliding, d.split);
    const uint32_t tag = tag_of(p, d.layer);
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
    sync();  // q, scores and probabilities are free again
  }

  // scores[head][token] of up to two pages; keys outside the window or past the row's end become -inf.
  __device__ __forceinline__ void scores(const PageRange& range, int page, bool two, int k_tiles) {
    const int half = w >> 2, tile = w & 3;
    const auto k_pos = pos.ahead(2 * half);
    if (half == 0 || two) {
      const uint4* a = stage(k_pos) + tile * k_tiles * 32;
      float c[2][4] = {};
#pragma unroll 1
      for (int k = 0; k < k_tiles; k += 4) {  // dims past head_dim are zero in q
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const uint32_t* q = reinterpret_cast<const uint32_t*>(&f().q[g][(k + i) * 16 + 2 * t]);
          mma_bf16(c[i & 1], a[min(k + i, k_tiles - 1) * 32], q[0], q[4]);
        }
      }
      const int token = half * 64 + tile * 16 + g, key = page * kPageTokens + token;
      const bool ok0 = key >= range.first_key && key < range.position;
      const bool ok1 = key + 8 >= range.first_key && key + 8 < range.position;
      f().score[2 * t][token] = ok0 ? c[0][0] + c[1][0] : -INFINITY;
      f().score[2 * t + 1][token] = ok0 ? c[0][1] + c[1][1] : -INFINITY;
      f().score[2 * t][token + 8] = ok1 ? c[0][2] + c[1][2] : -INFINITY;
      f().score[2 * t + 1][token + 8] = ok1 ? c[0][3] + c[1][3] : -INFINITY;
    }
    release(pos);
    if (two) release(pos.ahead(2));
  }

  // Warp w: head w. Base-2 softmax over up to 128 scores (q carries log2 e).
  __device__ __forceinline__ void softmax(bool two, float& m, float& sum) {
    float x[4], top = m;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x[i] = i < 2 || two ? f().score[w][lane + 32 * i] : -INFINITY;
      top = fmaxf(top, x[i]);
    }
#pragma unroll
    for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
    const float base = top == -INFINITY ? 0.f : top, correction = exp2_fast(m - base);
    float part = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float e = exp2_fast(x[i] - base);
      part += e;
      f().prob[w][lane + 32 * i] = __float2bfloat16(e);
    }
#pragma unroll
    for (int i = 16; i; i >>= 1) part += __shfl_xor_sync(~0u, part, i);
    m = top, sum = sum * correction + part;
    if (lane == 0) f().correction[w] = correction;
  }

  // acc[dim][head] += V^T p. On a page that is not full, tokens without a key are masked out of V: it may hold anything.
  __device__ __forceinline__ void values(const PageRange& range, int page, bool two, int k_tiles, float (&acc)[4]) {
    if (w < k_tiles) {
      const float c0 = f().correction[2 * t], c1 = f().correction[2 * t + 1];
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
          const uint32_t* q = reinterpret_cast<const uint32_t*>(&f().prob[g][h * 64 + k * 16 + 2 * t]);
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
  __device__ __forceinline__ void loop(int n_tasks) {
    DescriptorReader<NB> reader;
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open(p);
      ordinal = d.ordinal;
      if ((d.flags & kFlagFusedNorm) && normed_layer != d.layer) {
        stamp(p, 0, d.layer);
        norm(d.layer);
        stamp(p, 1, d.layer);
      }
      const Opcode op = static_cast<Opcode>(d.opcode);
      if (op == Opcode::kAttnDecode) attention(d);
      else if (d.flags & kFlagFusedNorm) normed_gemm(d);
      else if (op != Opcode::kAttnCombine) fetched_gemm(d, p.layers[d.layer]);
      stamp(p, op == Opcode::kAttnDecode ? 3 : op == Opcode::kQkvProj ? 2 : op == Opcode::kMoeUpGateActDrain ? 4 : op == Opcode::kOProj ? 6 : 7, d.layer);
      reader.close();
    }
  }
};

}  // namespace pointcode::mk
