// Chains: rows of one step that are consecutive tokens of one sequence, so that a row attends to keys that this step makes.
//
// Splits of the pages follow from a row's own position, as ever. But what the ring holds of the keys of the rows before it in
// its chain is not to be trusted: the page was copied before, while or after they were written. Whoever multiplies a piece of
// a page puts them there first, from the tagged k_new and v_new, rounded as the page would hold them. So a token's sums are
// the same, bit for bit, whether the tokens before it came in earlier steps or in this one.
//
// A warp patches what it alone reads (16 tokens of K, 16 dims of V), so nobody waits for another warp. Rows of a chain with
// the same pages in a split use the same stages, one row after the other: the ring holds them until the last one is done.
#pragma once

#include <climits>

#include "mk_common.cuh"

namespace pointcode::mk {

constexpr int kNoChain = INT_MAX;

// The position of the first row of this row's chain; kNoChain where the row is that one.
__device__ __forceinline__ int chain_begin(const Params& p, int row, int position) {
  const int before = row - p.first_row[row];
  return before > 0 ? position - before : kNoChain;
}

// Bit r: row r uses the stages of the row before. `range`: in lane l that of row l; producer and consumers agree.
template <int NB, bool kChains>
__device__ __forceinline__ uint32_t rows_on_held_pages(const Params& p, const PageRange& range) {
  if constexpr (!kChains) return 0;
  constexpr int kHeld = Smem<NB>::kStages - 2;  // the producer goes on meanwhile
  const int lane = threadIdx.x & 31, row = min(lane, NB - 1);
  const int begin = __shfl_up_sync(~0u, range.begin, 1), end = __shfl_up_sync(~0u, range.end, 1);
  const bool same = begin == range.begin && end == range.end && 2 * (end - begin) <= kHeld;
  return __ballot_sync(~0u, lane > 0 && lane < p.n_rows && p.first_row[row] < row && same);
}

// A run of keys that earlier rows of the step make: keys [begin, begin + n) of rows from `row` on.
struct Fresh {
  int begin, n, row;
  // Those among keys [first, last) that row `row` at `position` attends to; its chain begins at `chain`.
  __device__ __forceinline__ static Fresh within(int first, int last, int chain, int row,
                                                 int position) {
    const int begin = max(first, chain);
    return {begin, min(last, position) - begin, row - (position - begin)};
  }
};

__device__ __forceinline__ uint32_t high_halves(uint4 x) {  // of two fp32 that are bf16 values
  return x.x >> 16 | (x.z & 0xffff0000u);
}

// K of the keys, at most kMost, into `tile`: 16 tokens from `first` on, in A-fragment order. By a whole warp.
template <int kMost>
__device__ __forceinline__ void patch_keys(const Params& p, int ordinal, uint32_t tag, int group,
                                           const Fresh& fresh, int first, uint8_t* tile) {
  const int hd = p.head_dim, dim = (threadIdx.x & 31) * 4;  // four dims a lane
  const uint32_t row_bytes = p.n_kv_heads * hd * 8,
                 from = fresh.row * row_bytes + (group * hd + dim) * 8;
  uint4 x[2 * kMost];
  uint32_t at[2 * kMost];
#pragma unroll
  for (int i = 0; i < kMost; i++) {
    const bool has = dim < hd && i < fresh.n;
    at[2 * i] = has ? from + i * row_bytes : kNowhere;
    at[2 * i + 1] = has ? from + i * row_bytes + 16 : kNowhere;
  }
  gather<2 * kMost>(p, ordinal, tag, p.k_new, x, at);
#pragma unroll
  for (int i = 0; i < kMost; i++) {
    if (dim >= hd || i >= fresh.n) continue;
    const int token = fresh.begin - first + i;
    *reinterpret_cast<uint32_t*>(tile + fragment_offset(token, dim, hd / 16)) =
        high_halves(x[2 * i]);
    *reinterpret_cast<uint32_t*>(tile + fragment_offset(token, dim + 2, hd / 16)) =
        high_halves(x[2 * i + 1]);
  }
  order_before_copies();
  __syncwarp();
}

// V of the keys into `tile`: dims [dims, dims + 16) of the page that begins with key `first`. By a whole warp.
__device__ __forceinline__ void patch_values(const Params& p, int ordinal, uint32_t tag, int group,
                                             const Fresh& fresh, int first, int dims,
                                             uint8_t* tile) {
  constexpr int kTurns = 2;  // a lane takes two dims of a key, a turn four keys
  static_assert(kTurns * 4 >= kMaxRows - 1);
  const int lane = threadIdx.x & 31, dim = (lane & 7) * 2;
  uint4 x[kTurns];
  uint32_t at[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; i++) {
    const int key = (lane >> 3) + 4 * i;
    at[i] = key < fresh.n
                ? (((fresh.row + key) * p.n_kv_heads + group) * p.head_dim + dims + dim) * 8
                : kNowhere;
  }
  gather<kTurns>(p, ordinal, tag, p.v_new, x, at);
#pragma unroll
  for (int i = 0; i < kTurns; i++) {
    if (at[i] == kNowhere) continue;
    const int token = fresh.begin - first + (lane >> 3) + 4 * i;
    const auto put_half = [&](int d, uint32_t bits) {
      *reinterpret_cast<uint16_t*>(tile + fragment_offset(d, token, kPageTokens / 16)) =
          static_cast<uint16_t>(bits >> 16);
    };
    put_half(dim, x[i].x), put_half(dim + 1, x[i].z);
  }
  order_before_copies();
  __syncwarp();
}

}  // namespace pointcode::mk
