// Consumer warps: flash attention of one split of every row's pages.
#pragma once

#include "mk_chain.cuh"
#include "mk_combine.cuh"
#include "mk_gemm.cuh"

namespace pointcode::mk {

// kChains: rows may be consecutive tokens of one sequence. Where they are not, two rows are worked on at a time, by half of the
// warps each: what one row takes is mostly the wait for one step after the other. A row's sums are the same either way.
template <int NB, bool kChains>
struct ConsumerAttention : ConsumerGemm<NB> {
  using Core = ConsumerCore<NB>;
  using Core::f;
  using Core::g;
  using Core::lane;
  using Core::ordinal;
  using Core::p;
  using Core::pos;
  using Core::stage;
  using Core::t;
  using Core::w;

  using ConsumerGemm<NB>::ConsumerGemm;

  static constexpr int kTeams = NB > 1 && !kChains ? 2 : 1, kTeam = kConsumers / kTeams;
  static constexpr int kEach = kTeams;  // tiles of tokens and of dims, and pieces of q, per warp
  uint32_t row_syncs = 0;

  __device__ __forceinline__ int team() const { return w / kTeam; }
  __device__ __forceinline__ int member() const { return w % kTeam; }
  __device__ __forceinline__ RowSpace& space() const { return f().row[team()]; }
  __device__ __forceinline__ void team_sync() {
    __syncwarp();
    uint64_t* bar = &f().row_sync[team()];
    if (lane == 0) mbar_arrive(bar, kTeams);
    mbar_wait(p, bar, row_syncs++ & 1, ordinal, WaitKind::kWarpSync);
  }
  // Done with a stage that every warp of the team reads.
  __device__ __forceinline__ void release_page(const RingPos<Core::kStages>& at) const {
    __syncwarp();
    if (lane == 0) mbar_arrive(&smem<NB>().ring_empty[at.slot], kTeams);
  }

  // One split of every row's pages for the query heads of one KV head: two pages (128 tokens) at a time. A team's next q is
  // on its way while a row is worked on, and takes the row's place once its last scores are made.
  __device__ __forceinline__ void attention(const TaskDescriptor& d) {
    const PageRange mine = page_range<NB>(p, min(lane, p.n_rows - 1), d.flags & kFlagSliding,
                                          d.split);  // of row `lane`
    const uint32_t held = rows_on_held_pages<NB, kChains>(p, mine);
    uint4 q[kEach];
    if (team() < p.n_rows) ask_for(d, team(), q), place(d, team(), q);
    team_sync();
#pragma unroll 1
    for (int r = 0; r < p.n_rows; r++) {
      const PageRange range = {__shfl_sync(~0u, mine.begin, r), __shfl_sync(~0u, mine.end, r),
                               __shfl_sync(~0u, mine.first_key, r),
                               __shfl_sync(~0u, mine.position, r)};
      if (r % kTeams != team()) {
        pos = pos.ahead(2 * (range.end - range.begin));
        continue;
      }
      const int after = r + kTeams;
      if (after < p.n_rows) ask_for(d, after, q);
      attend(d, r, range, held >> r, [&] {
        if (after < p.n_rows) place(d, after, q);
      });
    }
  }
  // 16-byte pieces of a row's q for one KV head: begun here, put in place where they have come.
  __device__ __forceinline__ uint32_t q_piece(const TaskDescriptor& d, int row, int i) const {
    const int width = p.n_heads / p.n_kv_heads * p.head_dim;
    return piece_at(i) * 4 < width
               ? (row * p.n_kv_heads + d.tile_begin) * width * 4 + piece_at(i) * 16
               : kNowhere;
  }
  __device__ __forceinline__ int piece_at(int i) const {
    return (member() + kTeam * i) * 32 + lane;
  }
  __device__ __forceinline__ void ask_for(const TaskDescriptor& d, int row,
                                          uint4 (&q)[kEach]) const {
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const uint32_t at = q_piece(d, row, i);
      if (at != kNowhere) q[i] = load_volatile(p.q + at);
    }
  }
  __device__ __forceinline__ void place(const TaskDescriptor& d, int row, uint4 (&q)[kEach]) const {
    const uint32_t tag = tag_of(p, d.layer);
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const uint32_t at[1] = {q_piece(d, row, i)};
      if (at[0] == kNowhere) continue;
      if (!tagged(q[i], tag)) {
        uint4 again[1];
        gather<1>(p, ordinal, tag, p.q, again, at);
        q[i] = again[0];
      }
      const int at_value = piece_at(i) * 4;
      *reinterpret_cast<uint2*>(&space().q[at_value / p.head_dim][at_value % p.head_dim]) = {
          q[i].x, q[i].z};
    }
  }

  // Attention of one row over one split. `next` is called once, by all warps, when q is no longer read; what it writes is
  // visible to all of them afterwards. `held`: bit 0: the stages are those of the row before, bit 1: the row after uses them.
  template <typename Next>
  __device__ __forceinline__ void attend(const TaskDescriptor& d, int row, const PageRange& range,
                                         uint32_t held, const Next& next) {
    const int k_tiles = p.head_dim / 16;
    const int chain = !kChains   ? kNoChain
                      : held & 1 ? range.position - 1  // the others are there
                                 : chain_begin(p, row, range.position);
    const bool keeps = kChains && held & 2;
    const auto begin = pos;
    Softmax softmax;
    float acc[kEach][4] = {};  // dims of tile member() + kTeam i
    if (range.begin == range.end) team_sync(), next(), team_sync();
#pragma unroll 1
    for (int page = range.begin; page < range.end; page += 2) {
      const bool two = page + 1 < range.end, last = page + 2 >= range.end;
      const bool patched = (page + 2) * kPageTokens > chain;
      if constexpr (kChains)
        if (patched) await_keys(d, row, range, page, two, chain);
      float x[kEach][4], correction[2];
      scores(range, page, two, k_tiles, keeps, x);
      team_sync();
      weigh(x, softmax, correction);
      if (last) hand_in(softmax), next();
      team_sync();
      if constexpr (kChains)
        if (patched) await_values(d, row, range, page, two, chain);
      values(range, page, two, k_tiles, keeps, correction, acc);
    }
    if (keeps) pos = begin;
    hand_over(d, row, range.begin != range.end, k_tiles, softmax, acc);
  }
  // This lane's part of a row's output: dims g, g + 8 of its tiles for heads 2 t, 2 t + 1; of member 0, m and sum too.
  struct Softmax {
    float m[2] = {-INFINITY, -INFINITY};  // of heads 2 t, 2 t + 1
    float sum[kEach][2] = {};             // over tokens g, g + 8 of this warp's tiles
  };
  __device__ __forceinline__ void hand_over(const TaskDescriptor& d, int row, bool any, int k_tiles,
                                            const Softmax& softmax,
                                            const float (&acc)[kEach][4]) const {
    const uint32_t tag = tag_of(p, d.layer);
    const int hd = p.head_dim, heads = p.n_heads / p.n_kv_heads;
    uint8_t* out = part_of(p, row, d.tile_begin, d.split);
    const size_t stride = part_stride(hd);
#pragma unroll
    for (int e = 0; e < kEach; e++) {
      const int tile = member() + kTeam * e;
      if (tile >= k_tiles) continue;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int head = 2 * t + (i & 1), dim = tile * 16 + g + (i >> 1) * 8;
        if (head < heads) put(out + head * stride, dim, acc[e][i], tag);
      }
    }
    if (member() != 0 || g > 1) return;
    const int head = 2 * t + g;
    if (head >= heads) return;
    float total = 0.f;
    if (any)
#pragma unroll
      for (int i = 0; i < kConsumers; i++) total += space().sum[i][head];
    put(out + head * stride, hd, g ? softmax.m[1] : softmax.m[0], tag);
    put(out + head * stride, hd + 1, total, tag);
  }

  // Puts keys that this step makes into the pages at hand: of K what this warp multiplies next, then of V.
  __device__ __forceinline__ void await_keys(const TaskDescriptor& d, int row,
                                             const PageRange& range, int page, bool two,
                                             int chain) {
    const int half = w >> 2, first = (page + half) * kPageTokens + (w & 3) * 16;
    const Fresh fresh = Fresh::within(first, first + 16, chain, row, range.position);
    if (fresh.n <= 0 || (half == 1 && !two)) return;
    const auto at = pos.ahead(2 * half);
    stage(at);
    patch_keys<NB - 1>(p, ordinal, tag_of(p, d.layer), d.tile_begin, fresh, first,
                       smem<NB>().ring[at.slot] + (w & 3) * p.head_dim * 32);
  }
  __device__ __forceinline__ void await_values(const TaskDescriptor& d, int row,
                                               const PageRange& range, int page, bool two,
                                               int chain) {
    if (w >= p.head_dim / 16) return;
#pragma unroll 1
    for (int h = 0; h < 1 + two; h++) {
      const int first = (page + h) * kPageTokens;
      const Fresh fresh = Fresh::within(first, first + kPageTokens, chain, row, range.position);
      if (fresh.n <= 0) continue;
      const auto at = pos.ahead(1 + 2 * h);
      stage(at);
      patch_values(p, ordinal, tag_of(p, d.layer), d.tile_begin, fresh, first, w * 16,
                   smem<NB>().ring[at.slot] + w * 4 * 512);
    }
  }

  // x[.][i]: scores of tokens g + 8 (i >> 1) of this warp's tiles for heads 2 t + (i & 1), on up to two pages; keys outside the
  // window or past the row's end become -inf. The largest of each head go to the team.
  __device__ __forceinline__ void scores(const PageRange& range, int page, bool two, int k_tiles,
                                         bool keeps, float (&x)[kEach][4]) {
    const uint4* a[kEach];
    bool there[kEach];
#pragma unroll
    for (int e = 0; e < kEach; e++) {
      const int tile = member() + kTeam * e;
      there[e] = tile < 4 || two;
      a[e] = there[e] ? stage(pos.ahead(tile < 4 ? 0 : 2)) + (tile & 3) * k_tiles * 32 : a[0];
    }
    float c[kEach][2][4] = {};
    if (there[0]) {
#pragma unroll 1
      for (int k = 0; k < k_tiles; k += 4) {  // dims past head_dim are zero in q
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const uint32_t* q =
              reinterpret_cast<const uint32_t*>(&space().q[g][(k + i) * 16 + 2 * t]);
#pragma unroll
          for (int e = 0; e < kEach; e++)
            mma_bf16(c[e][i & 1], a[e][min(k + i, k_tiles - 1) * 32], q[0], q[4]);
        }
      }
    }
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int e = 0; e < kEach; e++) {
      const int key = page * kPageTokens + (member() + kTeam * e) * 16 + g;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int at = key + (i >> 1) * 8;
        const bool ok = there[e] && at >= range.first_key && at < range.position;
        x[e][i] = ok ? c[e][0][i] + c[e][1][i] : -INFINITY;
        top[i & 1] = fmaxf(top[i & 1], x[e][i]);
      }
    }
#pragma unroll
    for (int i = 4; i < 32; i <<= 1)
      top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], i)),
      top[1] = fmaxf(top[1], __shfl_xor_sync(~0u, top[1], i));
    if (g == 0) *reinterpret_cast<float2*>(&space().top[member()][2 * t]) = {top[0], top[1]};
    if (keeps) return;
    release_page(pos);
    if (two) release_page(pos.ahead(2));
  }

  // Base-2 softmax (q carries log2 e) of this warp's scores, in the scale of the largest of all so far.
  __device__ __forceinline__ void weigh(const float (&x)[kEach][4], Softmax& softmax,
                                        float (&correction)[2]) {
    float top[2] = {softmax.m[0], softmax.m[1]};
#pragma unroll
    for (int i = 0; i < kTeam; i++) {
      const float2 other = *reinterpret_cast<const float2*>(&space().top[i][2 * t]);
      top[0] = fmaxf(top[0], other.x), top[1] = fmaxf(top[1], other.y);
    }
    float base[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      base[h] = top[h] == -INFINITY ? 0.f : top[h];
      correction[h] = exp2_fast(softmax.m[h] - base[h]);
      softmax.m[h] = top[h];
    }
#pragma unroll
    for (int e = 0; e < kEach; e++) {
      const int token = (member() + kTeam * e) * 16 + g;
      float part[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        part[i] = exp2_fast(x[e][i] - base[i & 1]);
        space().prob[2 * t + (i & 1)][token + (i >> 1) * 8] = __float2bfloat16(part[i]);
      }
#pragma unroll
      for (int h = 0; h < 2; h++)
        softmax.sum[e][h] = softmax.sum[e][h] * correction[h] + (part[h] + part[2 + h]);
    }
  }
  // The sums of this warp's tiles.
  __device__ __forceinline__ void hand_in(const Softmax& softmax) {
#pragma unroll
    for (int e = 0; e < kEach; e++) {
      float sum[2] = {softmax.sum[e][0], softmax.sum[e][1]};
#pragma unroll
      for (int i = 4; i < 32; i <<= 1)
        sum[0] += __shfl_xor_sync(~0u, sum[0], i), sum[1] += __shfl_xor_sync(~0u, sum[1], i);
      if (g == 0)
        *reinterpret_cast<float2*>(&space().sum[member() + kTeam * e][2 * t]) = {sum[0], sum[1]};
    }
  }

  // acc[dim][head] += V^T p. On a page that is not full, tokens without a key are masked out of V: it may hold anything.
  __device__ __forceinline__ void values(const PageRange& range, int page, bool two, int k_tiles,
                                         bool keeps, const float (&correction)[2],
                                         float (&acc)[kEach][4]) {
#pragma unroll
    for (int e = 0; e < kEach; e++)
#pragma unroll
      for (int i = 0; i < 4; i++) acc[e][i] *= correction[i & 1];
#pragma unroll 1
    for (int h = 0; h < 1 + two; h++) {
      const auto v_pos = pos.ahead(1 + 2 * h);
      const uint4* a = stage(v_pos);
      const int first = (page + h) * kPageTokens;
      const bool whole = first >= range.first_key && first + kPageTokens <= range.position;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const uint32_t* q =
            reinterpret_cast<const uint32_t*>(&space().prob[g][h * 64 + k * 16 + 2 * t]);
        const int key = first + k * 16 + 2 * t;
#pragma unroll
        for (int e = 0; e < kEach; e++) {
          const int tile = member() + kTeam * e;
          if (tile >= k_tiles) continue;
          uint4 v = a[(tile * 4 + k) * 32];
          if (!whole) {
            v.x &= key_mask(range, key), v.y &= key_mask(range, key);
            v.z &= key_mask(range, key + 8), v.w &= key_mask(range, key + 8);
          }
          mma_bf16(acc[e], v, q[0], q[4]);
        }
      }
      if (!keeps) release_page(v_pos);
    }
    pos = pos.ahead(two ? 4 : 2);
  }
  // Keeps the low half if `key` is attended and the high half if `key + 1` is.
  __device__ __forceinline__ static uint32_t key_mask(const PageRange& range, int key) {
    const auto ok = [&](int k) { return k >= range.first_key && k < range.position; };
    return (ok(key) ? 0x0000ffffu : 0u) | (ok(key + 1) ? 0xffff0000u : 0u);
  }
};

}  // namespace pointcode::mk
