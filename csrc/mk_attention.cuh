// Consumer warps: flash attention of one split of every row's pages.
#pragma once

#include "mk_chain.cuh"
#include "mk_combine.cuh"
#include "mk_gemm.cuh"

namespace pointcode::mk {

// kChains: rows may be consecutive tokens of one sequence.
template <int NB, bool kChains>
struct ConsumerAttention : ConsumerGemm<NB> {
  using Core = ConsumerCore<NB>;
  using Core::f;
  using Core::g;
  using Core::lane;
  using Core::ordinal;
  using Core::p;
  using Core::pos;
  using Core::release;
  using Core::stage;
  using Core::sync;
  using Core::t;
  using Core::w;

  using ConsumerGemm<NB>::ConsumerGemm;

  // One split of every row's pages for the query heads of one KV head: two pages (128 tokens) at a time. The next row's
  // q is on its way while a row is worked on, and takes the row's place once its last scores are made.
  __device__ __forceinline__ void attention(const TaskDescriptor& d) {
    const int width = p.n_heads / p.n_kv_heads * p.head_dim,
              piece = w * 32 + lane;  // one 16-byte piece of q per thread
    const uint8_t* from = piece * 4 < width
                              ? p.q + static_cast<size_t>(d.tile_begin) * width * 4 + piece * 16
                              : nullptr;
    const size_t stride = static_cast<size_t>(p.n_kv_heads) * width * 4;
    const uint32_t tag = tag_of(p, d.layer);
    const PageRange mine = page_range<NB>(p, min(lane, p.n_rows - 1), d.flags & kFlagSliding,
                                          d.split);  // of row `lane`
    const uint32_t held = rows_on_held_pages<NB, kChains>(p, mine);
    uint4 x = from ? load_volatile(from) : uint4{};
    const auto place = [&] {
      if (!from) return;
      if (!tagged(x, tag)) {
        uint4 again[1];
        const uint32_t at[1] = {0};
        gather<1>(p, ordinal, tag, from, again, at);
        x = again[0];
      }
      *reinterpret_cast<uint2*>(&f().q[piece * 4 / p.head_dim][piece * 4 % p.head_dim]) = {x.x,
                                                                                           x.z};
    };
    place();
    sync();
#pragma unroll 1
    for (int r = 0; r < p.n_rows; r++) {
      const bool more = r + 1 < p.n_rows;
      if (from && more) from += stride, x = load_volatile(from);
      const PageRange range = {__shfl_sync(~0u, mine.begin, r), __shfl_sync(~0u, mine.end, r),
                               __shfl_sync(~0u, mine.first_key, r),
                               __shfl_sync(~0u, mine.position, r)};
      attend(d, r, range, held >> r, [&] {
        if (more) place();
      });
    }
  }

  // Attention of one row over one split. `next` is called once, by all warps, when q is no longer read; what it writes is
  // visible to all of them afterwards. `held`: bit 0: the stages are those of the row before, bit 1: the row after uses them.
  template <typename Next>
  __device__ __forceinline__ void attend(const TaskDescriptor& d, int row, const PageRange& range,
                                         uint32_t held, const Next& next) {
    const int hd = p.head_dim, heads = p.n_heads / p.n_kv_heads, group = d.tile_begin,
              k_tiles = hd / 16;
    const uint32_t tag = tag_of(p, d.layer);
    const int chain = !kChains   ? kNoChain
                      : held & 1 ? range.position - 1  // the others are there
                                 : chain_begin(p, row, range.position);
    const bool keeps = kChains && held & 2;
    const auto begin = pos;
    float m = -INFINITY, sum = 0.f, acc[4] = {};  // m, sum: of head w; acc: dims 16 w ..
    if (range.begin == range.end) sync(), next(), sync();
#pragma unroll 1
    for (int page = range.begin; page < range.end; page += 2) {
      const bool two = page + 1 < range.end;
      const bool patched = (page + 2) * kPageTokens > chain;
      if constexpr (kChains)
        if (patched) await_keys(d, row, range, page, two, chain);
      scores(range, page, two, k_tiles, keeps);
      sync();
      if (w < heads) softmax(two, m, sum);
      if (page + 2 >= range.end) next();
      sync();
      if constexpr (kChains)
        if (patched) await_values(d, row, range, page, two, chain);
      values(range, page, two, k_tiles, keeps, acc);
    }
    if (keeps) pos = begin;
    uint8_t* out = part_of(p, row, group, d.split);
    const size_t stride = part_stride(hd);
    if (w < k_tiles) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int head = 2 * t + (i & 1), dim = w * 16 + g + (i >> 1) * 8;
        if (head < heads) put(out + head * stride, dim, acc[i], tag);
      }
    }
    if (lane == 0 && w < heads)
      put(out + w * stride, hd, m, tag), put(out + w * stride, hd + 1, sum, tag);
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

  // scores[head][token] of up to two pages; keys outside the window or past the row's end become -inf.
  __device__ __forceinline__ void scores(const PageRange& range, int page, bool two, int k_tiles,
                                         bool keeps) {
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
    if (keeps) return;
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
  __device__ __forceinline__ void values(const PageRange& range, int page, bool two, int k_tiles,
                                         bool keeps, float (&acc)[4]) {
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
          const uint32_t* q =
              reinterpret_cast<const uint32_t*>(&f().prob[g][h * 64 + k * 16 + 2 * t]);
          mma_bf16(acc, v, q[0], q[4]);
        }
      }
      if (!keeps) release(v_pos);
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
