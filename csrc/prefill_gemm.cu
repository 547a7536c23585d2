// One persistent block per SM walks over tiles of 128 weight rows x up to 256 pairs. A producer warpgroup fills a ring
// of stages (64 columns each): weights by bulk copies, as they are packed, and the pairs' rows of x, gathered, by
// asynchronous copies. Two consumer warpgroups take 64 weight rows each: weight fragments go from the ring to registers
// (the packed order is the register order of wgmma's A operand), x is the B operand, so D is the transposed output.
#include "mk_ptx.cuh"
#include "prefill_gemm.h"
#include "prefill_ptx.cuh"
#include "wgmma.cuh"

namespace pointcode::prefill {
namespace {

constexpr int kTokens = 256;        // of a tile
constexpr int kDepth = 64;          // columns of a stage
constexpr int kSums = kTokens / 2;  // of one consumer thread
constexpr int kStages = 4;
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 3 * kGroup;
constexpr int kWeightBytes = kTileRows * kDepth * 2;
constexpr int kStageBytes = kWeightBytes + kTokens * kDepth * 2;
constexpr int kRound = 64;  // pairs that the epilogue turns at once
constexpr int kOutBytes =
    kRound * (64 * 2 + 16);  // of one warpgroup, rows padded against bank conflicts
constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

struct Shared {
  uint8_t stages[kStages][kStageBytes];  // weights, then x
  uint8_t out[2][kOutBytes];
  uint64_t full[kStages], empty[kStages];
  int32_t tiles_before[kMaxBanks + 1];  // tiles of the banks before
};

struct Tile {
  int bank, row_tile;  // of 128 rows
  int first, count;    // pairs
};

__device__ __forceinline__ int bank_begin(const Products& p, int bank) {
  return bank == 0 ? 0 : p.ends[bank - 1];
}
// Columns of one wgmma for so many pairs. A fourth width would cost registers.
__device__ __forceinline__ int product_width(int count) {
  return count <= 128 ? 128 : count <= 192 ? 192 : 256;
}
__device__ __forceinline__ int pair_tiles(int n_pairs) { return (n_pairs + kTokens - 1) / kTokens; }

// Fills tiles_before; every thread of the block calls it.
__device__ void count_tiles(const Products& p, Shared& s) {
  const int row_tiles = p.rows / kTileRows, i = static_cast<int>(threadIdx.x);
  if (i < p.n_banks) s.tiles_before[i + 1] = pair_tiles(p.ends[i] - bank_begin(p, i)) * row_tiles;
  if (i == 0) s.tiles_before[0] = 0;
  for (int step = 1; step < p.n_banks; step *= 2) {
    __syncthreads();
    const bool adds = i < p.n_banks && i + 1 > step;
    const int before = adds ? s.tiles_before[i + 1 - step] : 0;
    __syncthreads();
    if (adds) s.tiles_before[i + 1] += before;
  }
  __syncthreads();
}

__device__ __forceinline__ Tile tile_at(const Products& p, const Shared& s, int index) {
  int low = 0, high = p.n_banks;  // tiles_before[low] <= index < tiles_before[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (s.tiles_before[middle] <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int begin = bank_begin(p, low), n = p.ends[low] - begin, n_tiles = pair_tiles(n);
  const int local = index - s.tiles_before[low];
  const int even = (n + n_tiles - 1) / n_tiles,
            width = min(kTokens, (even + kRound - 1) / kRound * kRound);
  const int first = local % n_tiles * width;
  return {low, local / n_tiles, begin + first, min(width, n - first)};
}

// ---------------------------------------------------------------- producer
__device__ __forceinline__ void load_weights(const Products& p, const Tile& t, int step,
                                             uint8_t* to, uint64_t* full) {
  constexpr int kRun = kDepth / 16 * 512;  // of one tile of 16 rows
  const int64_t row_tile =
      static_cast<int64_t>(t.bank) * (p.rows / 16) + t.row_tile * (kTileRows / 16);
  const uint8_t* from = p.weights + (row_tile * p.k_tiles + step * (kDepth / 16)) * 512;
  mk::mbar_expect(full, kWeightBytes);
#pragma unroll
  for (int i = 0; i < kTileRows / 16; ++i)
    mk::bulk_load(to + i * kRun, from + static_cast<int64_t>(i) * p.k_tiles * 512, kRun, full);
}

__device__ void produce(const Products& p, Shared& s) {
  constexpr int kRowsApart = kGroup / 8;  // eight threads copy a row's 128 bytes
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 8, row = thread / 8;
  const int place = row * 128 + ((chunk ^ (row % 8)) << 4);
  uint32_t turn = 0;
  for (int index = static_cast<int>(blockIdx.x); index < s.tiles_before[p.n_banks];
       index += static_cast<int>(gridDim.x)) {
    const Tile t = tile_at(p, s, index);
    int from[kTokens / kRowsApart];  // in units of eight values; -1: zeros
#pragma unroll
    for (int i = 0; i < kTokens / kRowsApart; ++i) {
      const int at = row + i * kRowsApart;
      from[i] = -1;
      if (at < t.count)
        from[i] = (p.source != nullptr ? p.source[t.first + at] : t.first + at) * (p.k / 8) + chunk;
    }
    const int n_copies = product_width(t.count) / kRowsApart;
    for (int step = 0; step < p.k / kDepth; ++step, ++turn) {
      const uint32_t slot = turn % kStages;
      while (!mk::mbar_try_wait(&s.empty[slot], turn / kStages % 2 ^ 1)) {
      }
      if (thread == 0) load_weights(p, t, step, s.stages[slot], &s.full[slot]);
      uint8_t* const to = s.stages[slot] + kWeightBytes + place;
#pragma unroll
      for (int i = 0; i < kTokens / kRowsApart; ++i)
        if (i < n_copies)
          copy_or_zero(to + i * kRowsApart * 128,
                       p.x + static_cast<int64_t>(max(from[i], 0) + step * (kDepth / 8)) * 8,
                       from[i] >= 0);
      arrive_when_copied(&s.full[slot]);
    }
  }
  wait_for_copies();
}

// ---------------------------------------------------------------- consumers
template <int N>
__device__ __forceinline__ void multiply_stage(float (&d)[kSums], uint4 (&a)[kDepth / 16],
                                               const Shared& s, uint32_t slot, int weights_at,
                                               bool add) {
  const uint8_t* stage = s.stages[slot];
#pragma unroll
  for (int i = 0; i < kDepth / 16; ++i)
    a[i] = *reinterpret_cast<const uint4*>(stage + weights_at + i * 512);
  const uint64_t b = descriptor(stage + kWeightBytes);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDepth / 16; ++i)
    Wgmma<N>::run(reinterpret_cast<float (&)[N / 2]>(d), a[i], b + 2 * i, i > 0 || add);
  wgmma_commit();
}

// The sum over K of a tile; `turn` counts the stages of all tiles.
template <int N>
__device__ __forceinline__ void multiply(const Products& p, Shared& s, float (&d)[kSums],
                                         uint32_t& turn, int weights_at, bool releases) {
  uint4 a[2][kDepth / 16];  // the products of the stage before still read theirs
  const int n_steps = p.k / kDepth;
  for (int step = 0; step < n_steps; step += 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half, ++turn) {
      const uint32_t slot = turn % kStages;
      while (!mk::mbar_try_wait(&s.full[slot], turn / kStages % 2)) {
      }
      fence_async_proxy();
      multiply_stage<N>(d, a[half], s, slot, weights_at, step + half > 0);
      wgmma_wait<1>();
      if (releases && step + half > 0) mk::mbar_arrive(&s.empty[(turn - 1) % kStages]);
    }
  }
  wgmma_wait<0>();
  if (releases) mk::mbar_arrive(&s.empty[(turn - 1) % kStages]);
}

__device__ __forceinline__ float gated(float gate, float up, float scale) {
  return gate / (1.f + __expf(-gate)) * up * scale;
}

// Turns D over, 64 pairs at a time, through the warpgroup's own shared memory, and stores whole runs of a pair.
template <bool kGated>
__device__ __forceinline__ void store(const Products& p, const Tile& t, const float (&d)[kSums],
                                      uint8_t* turned, int group) {
  constexpr int kValues = kGated ? 32 : 64;  // of a pair, from this warpgroup
  constexpr int kPitch = kValues * 2 + 16, kChunks = kValues / 8;
  const int thread = static_cast<int>(threadIdx.x) % kGroup, lane = thread % 32, warp = thread / 32;
  const int64_t width = kGated ? p.rows / 2 : p.rows;
  __nv_bfloat16* const out = p.out + t.row_tile * (2 * kValues) + group * kValues;
#pragma unroll
  for (int round = 0; round < kTokens / kRound; ++round) {
    const int first = round * kRound;
    if (first >= t.count) break;
    const float* sums = d + first / 2;
    constexpr int kBlocks = kGated ? 4 : 2;  // of eight pairs, in one stmatrix
#pragma unroll
    for (int block = 0; block < kRound / 8; block += kBlocks) {
      uint32_t parts[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kGated) {
          const float* v = sums + 4 * (block + i);
          const int pair = first + 8 * (block + i) + 2 * (lane % 4);
          const bool scaled = p.scale != nullptr;
          const float low = scaled && pair < t.count ? p.scale[t.first + pair] : 1.f;
          const float high = scaled && pair + 1 < t.count ? p.scale[t.first + pair + 1] : 1.f;
          parts[i] = mk::pack_bf16(gated(v[0], v[2], low), gated(v[1], v[3], high));
        } else {
          const float* v = sums + 4 * (block + i / 2) + 2 * (i % 2);
          parts[i] = mk::pack_bf16(v[0], v[1]);
        }
      }
      const int matrix = lane / 8;
      const int pair = 8 * (block + (kGated ? matrix : matrix / 2)) + lane % 8;
      const int chunk = kGated ? warp : 2 * warp + matrix % 2;
      store_transposed(turned + pair * kPitch + chunk * 16, parts);
    }
    group_barrier(1 + group, kGroup);
#pragma unroll
    for (int i = 0; i < kRound * kChunks / kGroup; ++i) {
      const int pair = (thread + i * kGroup) / kChunks, chunk = thread % kChunks;
      const uint4 values = *reinterpret_cast<const uint4*>(turned + pair * kPitch + chunk * 16);
      if (first + pair < t.count)
        *reinterpret_cast<uint4*>(out + (t.first + first + pair) * width + chunk * 8) = values;
    }
    group_barrier(1 + group, kGroup);
  }
}

template <bool kGated>
__device__ void consume(const Products& p, Shared& s, int group) {
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  const int weights_at = (group * 4 + thread / 32) * (kDepth / 16 * 512) + thread % 32 * 16;
  uint32_t turn = 0;
  for (int index = static_cast<int>(blockIdx.x); index < s.tiles_before[p.n_banks];
       index += static_cast<int>(gridDim.x)) {
    const Tile t = tile_at(p, s, index);
    float d[kSums];
    if (const int width = product_width(t.count); width == 256) {
      multiply<256>(p, s, d, turn, weights_at, thread % 32 == 0);
    } else if (width == 192) {
      multiply<192>(p, s, d, turn, weights_at, thread % 32 == 0);
    } else {
      multiply<128>(p, s, d, turn, weights_at, thread % 32 == 0);
    }
    store<kGated>(p, t, d, s.out[group], group);
  }
}

template <bool kGated>
__global__ void __launch_bounds__(kThreads, 1) products_kernel(const __grid_constant__ Products p) {
  Shared& s = *reinterpret_cast<Shared*>(mk::dynamic_smem());
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mk::mbar_init(&s.full[i], kGroup + 1);  // the producer's copies, and the weights' bytes
      mk::mbar_init(&s.empty[i], 8);          // consumer warps
    }
    mk::mbar_init_fence();
  }
  count_tiles(p, s);
  if (threadIdx.x < kGroup) {
    mk::set_fewer_registers<kProducerRegisters>();
    produce(p, s);
  } else {
    mk::set_more_registers<kConsumerRegisters>();
    consume<kGated>(p, s, static_cast<int>(threadIdx.x) / kGroup - 1);
  }
}

template <bool kGated>
cudaError_t launch(const Products& products, int n_sms, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared);
  static_assert(kBytes <= 227 * 1024);
  const cudaError_t error = cudaFuncSetAttribute(
      products_kernel<kGated>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(n_sms)), config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes, config.stream = stream;
  return cudaLaunchKernelEx(&config, products_kernel<kGated>, products);
}

}  // namespace

cudaError_t launch_products(const Products& p, int n_sms, cudaStream_t stream) {
  const bool fits = p.n_banks > 0 && p.n_banks <= kMaxBanks && p.rows > 0 &&
                    p.rows % kTileRows == 0 && p.k > 0 && p.k % kDepthUnit == 0 &&
                    p.k_tiles * 16 >= p.k;
  if (!fits) return cudaErrorInvalidValue;
  return p.gated ? launch<true>(p, n_sms, stream) : launch<false>(p, n_sms, stream);
}

}  // namespace pointcode::prefill
