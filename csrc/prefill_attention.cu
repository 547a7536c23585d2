// Persistent blocks walk over tiles of 128 queries of a head. A producer thread brings blocks of 128 keys and values to
// two rings; two consumer warpgroups take 64 queries each and hold q, scores, weights and sums in registers. The
// scores of a block are computed while the weights of the block before are multiplied with its values, and while one
// warpgroup has the tensor cores, the other computes its softmax (the way of FlashAttention-3).
#include "mk_ptx.cuh"
#include "prefill_attention.h"
#include "prefill_ptx.cuh"
#include "tile_map.h"
#include "wgmma.cuh"

namespace pointcode::prefill {
namespace {

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 3 * kGroup;
constexpr int kRows = 64;  // queries of a warpgroup
constexpr int kQueries = 2 * kRows, kKeys = 128;
constexpr int kStages = 2;               // `consume` takes the other one for the next
constexpr int kHalfBytes = kKeys * 128;  // 64 dims of a block
constexpr int kBlockBytes = kHeadDim / 64 * kHalfBytes;
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
constexpr int kFirstTurn = 2;       // barrier ids, one a warpgroup
constexpr float kHidden = -1.0e6f;  // a score; finite, so that a row of them gives no NaN

struct Ring {
  uint8_t blocks[kStages][kBlockBytes];
};
struct Shared {
  Ring k, v;
  uint64_t full_k[kStages], empty_k[kStages], full_v[kStages], empty_v[kStages];
};

struct Launch {
  CUtensorMap k, v;
  Attention a;
  float scale;  // in powers of two
};

struct Tile {
  int start, head;  // first query
  int low, blocks;  // first key, blocks of keys
};

__device__ __forceinline__ Tile tile_at(const Attention& a, int index) {
  const int n_blocks = (a.n_queries + kQueries - 1) / kQueries;
  const int start = (n_blocks - 1 - index / a.heads) * kQueries;  // the longest first
  const int lead = a.n_keys - a.n_queries;
  const int low = a.window > 0 ? max(0, lead + start - a.window + 1) / kKeys * kKeys : 0;
  const int end = lead + min(start + kQueries, a.n_queries);
  return {start, index % a.heads, low, (end - low + kKeys - 1) / kKeys};
}
__device__ __forceinline__ int n_tiles(const Attention& a) {
  return (a.n_queries + kQueries - 1) / kQueries * a.heads;
}
// Blocks are taken from the last one, which holds the youngest keys, to the first.
__device__ __forceinline__ int first_key(const Tile& t, int block) {
  return t.low + (t.blocks - 1 - block) * kKeys;
}
__device__ __forceinline__ void wait_for(uint64_t* bar, uint32_t turn, uint32_t flip) {
  while (!mk::mbar_try_wait(bar, turn / kStages % 2 ^ flip)) {
  }
}

// ---------------------------------------------------------------- producer
__device__ __forceinline__ void load_block(const CUtensorMap& map, uint8_t* to, int column, int key,
                                           uint64_t* full) {
  mk::mbar_expect(full, kBlockBytes);
  tile_load(to, map, column, key, full);
  tile_load(to + kHalfBytes, map, column + 64, key, full);
}

// One thread's work.
__device__ void produce(const Launch& l, Shared& s) {
  uint32_t turn = 0;
  for (int index = static_cast<int>(blockIdx.x); index < n_tiles(l.a);
       index += static_cast<int>(gridDim.x)) {
    const Tile t = tile_at(l.a, index);
    const int column = t.head / (l.a.heads / l.a.groups) * kHeadDim;
    for (int block = 0; block < t.blocks; ++block, ++turn) {
      const uint32_t slot = turn % kStages;
      wait_for(&s.empty_k[slot], turn, 1);
      load_block(l.k, s.k.blocks[slot], column, first_key(t, block), &s.full_k[slot]);
      wait_for(&s.empty_v[slot], turn, 1);
      load_block(l.v, s.v.blocks[slot], column, first_key(t, block), &s.full_v[slot]);
    }
  }
}

// ---------------------------------------------------------------- consumers
struct Rows {  // of a thread: g and g + 8 of its warp's sixteen
  float top[2], total[2];
};

__device__ __forceinline__ void release(uint64_t* empty) {
  if (threadIdx.x % 32 == 0) mk::mbar_arrive(empty);
}

__device__ __forceinline__ void load_queries(const Attention& a, const Tile& t, int row, int lane,
                                             uint4 (&q)[kHeadDim / 16]) {
  uint32_t* const parts = reinterpret_cast<uint32_t*>(q);
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int token = t.start + row + 8 * high;
    const uint32_t* from = reinterpret_cast<const uint32_t*>(
        a.q + (static_cast<int64_t>(token) * a.heads + t.head) * kHeadDim + 2 * (lane % 4));
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i)
      parts[i / 2 * 4 + i % 2 * 2 + high] = token < a.n_queries ? from[4 * i] : 0;
  }
}

__device__ __forceinline__ void multiply_keys(const Shared& s, uint32_t slot,
                                              const uint4 (&q)[kHeadDim / 16],
                                              float (&scores)[kKeys / 2]) {
  const uint64_t keys = descriptor(s.k.blocks[slot]);
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i)
    Wgmma<kKeys>::run(scores, q[i], keys + i / 4 * (kHalfBytes >> 4) + i % 4 * 2, i > 0);
  wgmma_commit();
}
__device__ __forceinline__ void multiply_values(const Shared& s, uint32_t slot,
                                                const uint4 (&p)[kKeys / 16],
                                                float (&sums)[kHeadDim / 2]) {
  const uint64_t values = column_descriptor(s.v.blocks[slot], kHalfBytes);
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) Wgmma<kHeadDim, true>::run(sums, p[i], values + i * 128, 1);
  wgmma_commit();
}

// Hides what the rows do not see. `row` is the position of the thread's first row, `key` of the block's first column.
__device__ __forceinline__ void hide(float (&scores)[kKeys / 2], int row, int key, int window,
                                     int lane) {
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    const int at = key + i / 4 * 8 + 2 * (lane % 4) + i % 2, from = row + i / 2 % 2 * 8;
    if (at > from || (window > 0 && at <= from - window)) scores[i] = kHidden;
  }
}

// Scores to weights, in place; returns by what the sums so far shrink.
__device__ __forceinline__ float2 soften(float (&scores)[kKeys / 2], Rows& rows, float scale) {
  float shrink[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = rows.top[h];
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i)
      top = fmaxf(top, fmaxf(scores[4 * i + 2 * h], scores[4 * i + 2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    shrink[h] = mk::exp2_fast((rows.top[h] - top) * scale);
    const float offset = -top * scale;
    float total = 0;
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[4 * i + 2 * h + e];
        score = mk::exp2_fast(fmaf(score, scale, offset));
        total += score;
      }
    }
    rows.top[h] = top, rows.total[h] = rows.total[h] * shrink[h] + total;
  }
  return {shrink[0], shrink[1]};
}

__device__ __forceinline__ void shrink_sums(float (&sums)[kHeadDim / 2], float2 by) {
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; ++i) sums[i] *= i / 2 % 2 == 0 ? by.x : by.y;
}

// The order of D is, pair by pair, that of A.
__device__ __forceinline__ void to_operand(const float (&weights)[kKeys / 2],
                                           uint4 (&p)[kKeys / 16]) {
  uint32_t* const parts = reinterpret_cast<uint32_t*>(p);
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) parts[i] = mk::pack_bf16(weights[2 * i], weights[2 * i + 1]);
}

__device__ __forceinline__ void store(const Attention& a, const Tile& t, int row, int lane,
                                      const float (&sums)[kHeadDim / 2], const Rows& rows) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = rows.total[h];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const float scale = 1.f / total;
    const int token = t.start + row + 8 * h;
    uint32_t* const to = reinterpret_cast<uint32_t*>(
        a.out + (static_cast<int64_t>(token) * a.heads + t.head) * kHeadDim + 2 * (lane % 4));
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i)
      if (token < a.n_queries)
        to[4 * i] = mk::pack_bf16(sums[4 * i + 2 * h] * scale, sums[4 * i + 2 * h + 1] * scale);
  }
}

__device__ __forceinline__ void add_values(Shared& s, uint32_t slot, uint32_t turn,
                                           const uint4 (&p)[kKeys / 16],
                                           float (&sums)[kHeadDim / 2]) {
  wait_for(&s.full_v[slot], turn, 0);
  wgmma_fence();
  multiply_values(s, slot, p, sums);
  wgmma_wait<0>();
  release(&s.empty_v[slot]);
}

__device__ __forceinline__ void clear(float (&sums)[kHeadDim / 2]) {
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; ++i) sums[i] = 0;
}

__device__ void consume(const Launch& l, Shared& s, int group) {
  const Attention& a = l.a;
  const int thread = static_cast<int>(threadIdx.x) % kGroup, lane = thread % 32;
  const int row = group * kRows + thread / 32 * 16 + lane / 4, lead = a.n_keys - a.n_queries;
  uint32_t turn = 0;
  if (group == 1) group_arrive(kFirstTurn, 2 * kGroup);  // the first turn is the first group's
  for (int index = static_cast<int>(blockIdx.x); index < n_tiles(a);
       index += static_cast<int>(gridDim.x)) {
    const Tile t = tile_at(a, index);
    const int position = lead + t.start + row, first = lead + t.start + group * kRows;
    uint4 q[kHeadDim / 16], p[kKeys / 16];
    float scores[kKeys / 2], sums[kHeadDim / 2];
    Rows rows = {{kHidden, kHidden}, {0, 0}};
    load_queries(a, t, row, lane, q);
    clear(sums);
    wait_for(&s.full_k[turn % kStages], turn, 0);
    for (int block = 0; block < t.blocks; ++block, ++turn) {
      const uint32_t slot = turn % kStages, before = (turn - 1) % kStages;
      group_barrier(kFirstTurn + group, 2 * kGroup);
      wgmma_fence();
      multiply_keys(s, slot, q, scores);
      if (block > 0) {
        wait_for(&s.full_v[before], turn - 1, 0);
        wgmma_fence();
        multiply_values(s, before, p, sums);
        group_arrive(kFirstTurn + (group ^ 1), 2 * kGroup);
        wgmma_wait<1>();
      } else {
        group_arrive(kFirstTurn + (group ^ 1), 2 * kGroup);
        wgmma_wait<0>();
      }
      pin(scores);
      release(&s.empty_k[slot]);
      const int key = first_key(t, block);
      if (key + kKeys - 1 > first || (a.window > 0 && key <= first + kRows - 1 - a.window))
        hide(scores, position, key, a.window, lane);
      const float2 shrink = soften(scores, rows, l.scale);
      pin(scores);
      // This loop also keeps the assembler from waiting for the values before the softmax.
      if (block + 1 < t.blocks) wait_for(&s.full_k[slot ^ 1], turn + 1, 0);
      wgmma_wait<0>();
      pin(sums);
      if (block > 0) release(&s.empty_v[before]);
      shrink_sums(sums, shrink);
      to_operand(scores, p);
    }
    const uint32_t last = (turn - 1) % kStages;
    add_values(s, last, turn - 1, p, sums);
    store(a, t, row, lane, sums, rows);
  }
  if (group == 0) group_barrier(kFirstTurn, 2 * kGroup);  // the turn that group 1 still gives
}

__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const __grid_constant__ Launch l) {
  Shared& s = *reinterpret_cast<Shared*>(mk::dynamic_smem());
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mk::mbar_init(&s.full_k[i], 1), mk::mbar_init(&s.full_v[i], 1);
      mk::mbar_init(&s.empty_k[i], 2 * kGroup / 32), mk::mbar_init(&s.empty_v[i], 2 * kGroup / 32);
    }
    mk::mbar_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kGroup) {
    mk::set_fewer_registers<kProducerRegisters>();
    if (threadIdx.x == 0) produce(l, s);
  } else {
    mk::set_more_registers<kConsumerRegisters>();
    consume(l, s, static_cast<int>(threadIdx.x) / kGroup - 1);
  }
}

}  // namespace

cudaError_t launch_attention(const Attention& a, int n_sms, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared);
  static_assert(kBytes <= 227 * 1024);
  const bool fits =
      a.n_queries > 0 && a.n_keys >= a.n_queries && a.groups > 0 && a.heads % a.groups == 0;
  if (!fits) return cudaErrorInvalidValue;
  Launch launch = {};
  launch.a = a, launch.scale = a.scale * 1.44269504f;
  const int64_t columns = static_cast<int64_t>(a.groups) * kHeadDim;
  cudaError_t error = make_tile_map(&launch.k, a.k, a.n_keys, columns, kKeys);
  if (error == cudaSuccess) error = make_tile_map(&launch.v, a.v, a.n_keys, columns, kKeys);
  if (error == cudaSuccess)
    error =
        cudaFuncSetAttribute(attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  const int n_tiles = (a.n_queries + kQueries - 1) / kQueries * a.heads;
  config.gridDim = dim3(static_cast<unsigned>(n_tiles < n_sms ? n_tiles : n_sms));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes, config.stream = stream;
  return cudaLaunchKernelEx(&config, attention_kernel, launch);
}

}  // namespace pointcode::prefill
