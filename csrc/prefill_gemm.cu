// Persistent clusters of blocks, a block per SM, walk over tiles of 128 weight rows per block x up to 256 pairs, which
// the cluster shares. One thread fills a ring of stages (64 columns each) by bulk copies: the block's own weights, as
// they are packed, and its part of the pairs' x, for all blocks of the cluster (what limits this is the L2's output).
// Two consumer warpgroups take 64 weight rows each: weight fragments go from the ring to registers (the packed order is
// the register order of wgmma's A operand), x is the B operand, so D is the transposed output.
#include "mk_ptx.cuh"
#include "prefill_gemm.h"
#include "prefill_ptx.cuh"
#include "wgmma.cuh"

namespace pointcode::prefill {
namespace {

constexpr int kTokens = 256;  // of a tile
constexpr int kDepth = 64;    // columns of a stage
constexpr int kStages = 4;
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 3 * kGroup;
constexpr int kRowBytes = kDepth * 2;  // of a pair in a stage
constexpr int kWeightBytes = kTileRows * kRowBytes;
constexpr int kStageBytes = kWeightBytes + kTokens * kRowBytes;
constexpr int kRound = 64;  // pairs that the epilogue turns at once
constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

struct Shared {
  uint8_t stages[kStages][kStageBytes];  // weights, then x
  uint8_t out[kTokens * kRowBytes];
  uint64_t full[kStages], empty[kStages];
  int32_t tiles_before[kMaxBanks + 1];  // the cluster's tiles of the banks before
};

struct Tile {
  int bank, rows;  // a cluster's set of rows
  int first, count;
};

__device__ __forceinline__ int pair_tiles(int n_pairs) { return (n_pairs + kTokens - 1) / kTokens; }
__device__ __forceinline__ int rounded(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Fills tiles_before; every thread of the block calls it.
template <int kCluster>
__device__ void count_tiles(const Products& p, Shared& s) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < p.n_banks)
    s.tiles_before[i + 1] = pair_tiles(p.ends[i] - p.begins[i]) * (p.rows / kTileRows / kCluster);
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
  const int begin = p.begins[low], n = p.ends[low] - begin, n_tiles = pair_tiles(n);
  const int local = index - s.tiles_before[low];
  const int width = rounded((n + n_tiles - 1) / n_tiles, kRound);
  const int first = local % n_tiles * width;
  return {low, local / n_tiles, begin + first, min(width, n - first)};
}

// ---------------------------------------------------------------- producer
__device__ __forceinline__ void load_weights(const uint8_t* from, int64_t tile_bytes, uint8_t* to,
                                             uint64_t* full) {
  constexpr int kRun = kDepth / 16 * 512;  // of one tile of 16 rows
#pragma unroll
  for (int i = 0; i < kTileRows / 16; ++i)
    mk::bulk_load(to + i * kRun, from + i * tile_bytes, kRun, full);
}

// One thread's work.
template <int kCluster>
__device__ void produce(const Products& p, Shared& s, int rank) {
  const int64_t tile_bytes = static_cast<int64_t>(p.k_tiles) * 512;
  const int64_t panel_bytes = static_cast<int64_t>(p.pitch) * kRowBytes;
  uint32_t turn = 0;
  for (int index = static_cast<int>(blockIdx.x) / kCluster; index < s.tiles_before[p.n_banks];
       index += static_cast<int>(gridDim.x) / kCluster) {
    const Tile t = tile_at(p, s, index);
    const int64_t row_tile = static_cast<int64_t>(t.bank) * (p.rows / 16) +
                             (t.rows * kCluster + rank) * (kTileRows / 16);
    const uint8_t* weights = p.weights + row_tile * tile_bytes;
    const int count = rounded(t.count, kRunUnit),
              part = rounded(count, kCluster * kRunUnit) / kCluster;
    const int skipped = rank * part, mine = min(part, count - skipped);
    const uint8_t* x = p.x + static_cast<int64_t>(t.first + skipped) * kRowBytes;
    for (int step = 0; step < p.k / kDepth; ++step, ++turn) {
      const uint32_t slot = turn % kStages;
      uint64_t* const full = &s.full[slot];
      while (!mk::mbar_try_wait(&s.empty[slot], turn / kStages % 2 ^ 1)) {
      }
      mk::mbar_expect(full, static_cast<uint32_t>(kWeightBytes + count * kRowBytes));
      load_weights(weights, tile_bytes, s.stages[slot], full);
      uint8_t* const to = s.stages[slot] + kWeightBytes + skipped * kRowBytes;
      if (mine > 0) {
        const auto bytes = static_cast<uint32_t>(mine * kRowBytes);
        if constexpr (kCluster == 1) {
          mk::bulk_load(to, x, bytes, full);
        } else {
          bulk_load_to_all(to, x, bytes, full, (1 << kCluster) - 1);
        }
      }
      weights += kDepth / 16 * 512;
      x += panel_bytes;
    }
  }
}

// ---------------------------------------------------------------- consumers
template <int N>
__device__ __forceinline__ void multiply_stage(float (&d)[N / 2], uint4 (&a)[kDepth / 16],
                                               const Shared& s, uint32_t slot, int weights_at) {
  const uint8_t* stage = s.stages[slot];
#pragma unroll
  for (int i = 0; i < kDepth / 16; ++i)
    a[i] = *reinterpret_cast<const uint4*>(stage + weights_at + i * 512);
  const uint64_t b = descriptor(stage + kWeightBytes);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDepth / 16; ++i) Wgmma<N>::run(d, a[i], b + 2 * i, 1);
  wgmma_commit();
}

// Lanes tell one block each that this warp has read the slot.
template <int kCluster>
__device__ __forceinline__ void release(Shared& s, uint32_t slot) {
  const uint32_t lane = threadIdx.x % 32;
  if (lane >= kCluster) return;
  if constexpr (kCluster == 1) {
    mk::mbar_arrive(&s.empty[slot]);
  } else {
    arrive_at(&s.empty[slot], lane);
  }
}

// The sum over K of a tile; `turn` counts the stages of all tiles.
template <int kCluster, int N>
__device__ __forceinline__ void multiply(const Products& p, Shared& s, float (&d)[N / 2],
                                         uint32_t& turn, int weights_at) {
  uint4 a[2][kDepth / 16];  // the products of the stage before still read theirs
  const int n_steps = p.k / kDepth;
  for (int step = 0; step < n_steps; step += 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half, ++turn) {
      const uint32_t slot = turn % kStages;
      while (!mk::mbar_try_wait(&s.full[slot], turn / kStages % 2)) {
      }
      multiply_stage<N>(d, a[half], s, slot, weights_at);
      wgmma_wait<1>();
      if (step + half > 0) release<kCluster>(s, (turn - 1) % kStages);
    }
  }
  wgmma_wait<0>();
  release<kCluster>(s, (turn - 1) % kStages);
}

__device__ __forceinline__ float gated(float gate, float up) {
  return __fdividef(gate, 1.f + __expf(-gate)) * up;
}
// Where a 16-byte chunk of a pair lies in a tile.
__device__ __forceinline__ int place_of(int pair, int chunk) {
  return pair * kRowBytes + ((chunk ^ (pair % 8)) << 4);
}

// The hidden units of the block's 128 rows are one panel: the tile is turned in shared memory and leaves as one run.
template <int N>
__device__ __forceinline__ void store_gated(const Products& p, const Tile& t, int row_tile,
                                            const float (&d)[N / 2], Shared& s, int group) {
  const int thread = static_cast<int>(threadIdx.x) % kGroup, lane = thread % 32, warp = thread / 32;
  const bool leads = group == 0 && thread == 0;
  if (leads) wait_until_read();  // the tile before
  group_barrier<1>(2 * kGroup);
#pragma unroll
  for (int block = 0; block < N / 8; block += 4) {  // of eight pairs
    uint32_t parts[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* v = d + 4 * (block + i);
      parts[i] = mk::pack_bf16(gated(v[0], v[2]), gated(v[1], v[3]));
    }
    store_transposed(s.out + place_of(8 * block + lane, 4 * group + warp), parts);
  }
  fence_async_proxy();
  group_barrier<1>(2 * kGroup);
  if (leads)
    bulk_store(p.out + (static_cast<int64_t>(row_tile) * p.pitch + t.first) * kRowBytes, s.out,
               static_cast<uint32_t>(t.count * kRowBytes));
}

// Turns D over, 64 pairs at a time, through the warpgroup's own shared memory, and stores a pair's 64 values as a run.
template <int N>
__device__ __forceinline__ void store_plain(const Products& p, const Tile& t, int row_tile,
                                            const float (&d)[N / 2], Shared& s, int group) {
  const int thread = static_cast<int>(threadIdx.x) % kGroup, lane = thread % 32, warp = thread / 32;
  uint8_t* const out = p.out + (row_tile * 2 + group) * kRowBytes;
#pragma unroll
  for (int first = 0; first < N; first += kRound) {
    uint8_t* const turned = s.out + (2 * group + first / kRound % 2) * (kRound * kRowBytes);
    const int n_pairs = N - first < kRound ? N - first : kRound;
#pragma unroll
    for (int block = 0; block < n_pairs / 8; block += 2) {
      uint32_t parts[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* v = d + first / 2 + 4 * (block + i / 2) + 2 * (i % 2);
        parts[i] = mk::pack_bf16(v[0], v[1]);
      }
      const int matrix = lane / 8;
      store_transposed(
          turned + place_of(8 * (block + matrix / 2) + lane % 8, 2 * warp + matrix % 2), parts);
    }
    group_barrier(1 + group, kGroup);
#pragma unroll
    for (int i = 0; i < n_pairs * 8 / kGroup; ++i) {
      const int pair = (thread + i * kGroup) / 8, chunk = thread % 8;
      const uint4 values = *reinterpret_cast<const uint4*>(turned + place_of(pair, chunk));
      if (first + pair < t.count)
        *reinterpret_cast<uint4*>(out + static_cast<int64_t>(t.first + first + pair) * p.rows * 2 +
                                  chunk * 16) = values;
    }
  }
  group_barrier(1 + group, kGroup);  // before the next tile's first writes
}

template <int kCluster, bool kGated, int N>
__device__ __forceinline__ void make_tile(const Products& p, const Tile& t, Shared& s, int row_tile,
                                          int group, uint32_t& turn) {
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  const int weights_at = (group * 4 + thread / 32) * (kDepth / 16 * 512) + thread % 32 * 16;
  float d[N / 2];
#pragma unroll
  for (float& sum : d) sum = 0;  // without it all widths' sums are live at once for the assembler
  multiply<kCluster, N>(p, s, d, turn, weights_at);
  if constexpr (kGated) {
    store_gated<N>(p, t, row_tile, d, s, group);
  } else {
    store_plain<N>(p, t, row_tile, d, s, group);
  }
}

template <int kCluster, bool kGated>
__device__ void consume(const Products& p, Shared& s, int rank, int group) {
  uint32_t turn = 0;
  for (int index = static_cast<int>(blockIdx.x) / kCluster; index < s.tiles_before[p.n_banks];
       index += static_cast<int>(gridDim.x) / kCluster) {
    const Tile t = tile_at(p, s, index);
    const int row_tile = t.rows * kCluster + rank;
    // A fourth width would take so many registers that the assembler lets wgmmas wait for each other.
    if (t.count <= 128) {
      make_tile<kCluster, kGated, 128>(p, t, s, row_tile, group, turn);
    } else if (t.count <= 192) {
      make_tile<kCluster, kGated, 192>(p, t, s, row_tile, group, turn);
    } else {
      make_tile<kCluster, kGated, 256>(p, t, s, row_tile, group, turn);
    }
  }
  if (kGated && group == 0 && threadIdx.x % kGroup == 0) wait_until_stored();
}

template <int kCluster, bool kGated>
__global__ void __launch_bounds__(kThreads, 1) products_kernel(const __grid_constant__ Products p) {
  Shared& s = *reinterpret_cast<Shared*>(mk::dynamic_smem());
  const int rank = kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mk::mbar_init(&s.full[i], 1);
      mk::mbar_init(&s.empty[i], kCluster * 2 * kGroup / 32);  // the cluster's consumer warps
    }
    mk::mbar_init_fence();
  }
  count_tiles<kCluster>(p, s);
  if constexpr (kCluster > 1) cluster_sync();
  if (threadIdx.x < kGroup) {
    mk::set_fewer_registers<kProducerRegisters>();
    if (threadIdx.x == 0) produce<kCluster>(p, s, rank);
  } else {
    mk::set_more_registers<kConsumerRegisters>();
    consume<kCluster, kGated>(p, s, rank, static_cast<int>(threadIdx.x) / kGroup - 1);
  }
  if constexpr (kCluster > 1) cluster_sync();  // others may still copy to and arrive at this block
}

template <int kCluster, bool kGated>
cudaError_t launch(const Products& products, int n_sms, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared);
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = products_kernel<kCluster, kGated>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(n_sms / kCluster * kCluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes, config.stream = stream;
  config.attrs = &attribute, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, products);
}

template <int kCluster>
cudaError_t launch_any(const Products& p, int n_sms, cudaStream_t stream) {
  return p.gated ? launch<kCluster, true>(p, n_sms, stream)
                 : launch<kCluster, false>(p, n_sms, stream);
}

}  // namespace

cudaError_t launch_products(const Products& p, int cluster, int n_sms, cudaStream_t stream) {
  const bool fits = p.n_banks > 0 && p.n_banks <= kMaxBanks && p.rows > 0 &&
                    p.rows % (cluster * kTileRows) == 0 && p.k > 0 && p.k % kDepthUnit == 0 &&
                    p.k_tiles * 16 >= p.k && p.pitch % kRunUnit == 0 && n_sms >= cluster;
  if (!fits) return cudaErrorInvalidValue;
  switch (cluster) {
    case 1:
      return launch_any<1>(p, n_sms, stream);
    case 2:
      return launch_any<2>(p, n_sms, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace pointcode::prefill
