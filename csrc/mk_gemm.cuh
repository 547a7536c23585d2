// Consumer warps: activations into shared memory, and the GEMMs over ring stages.
#pragma once

#include "mk_consumer_core.cuh"

namespace pointcode::mk {

template <int NB>
struct ConsumerGemm : ConsumerCore<NB> {
  using Core = ConsumerCore<NB>;
  using Core::f;
  using Core::g;
  using Core::give;
  using Core::kRowBytes;
  using Core::lane;
  using Core::mma_stage;
  using Core::next_item;
  using Core::normed_layer;
  using Core::ordinal;
  using Core::p;
  using Core::pos;
  using Core::release_whole;
  using Core::routed_layers;
  using Core::stage;
  using Core::sync;
  using Core::t;
  using Core::tile;
  using Core::w;

  using Core::Core;

  static constexpr int kPieces = kMaxHidden / 4 / (kConsumers * 32);  // of a residual row, per lane
  __device__ __forceinline__ int piece(int i) const { return (w + kConsumers * i) * 32 + lane; }
  __device__ __forceinline__ bool is_there(int i, int row) const {
    return piece(i) * 4 < p.hidden && row < p.n_rows;
  }
  // This lane's pieces of all rows; what is not there is zero.
  __device__ __forceinline__ void fetch_residual(uint32_t tag, uint4 (&x)[NB][kPieces]) const {
#pragma unroll
    for (int r = 0; r < NB; r++)
#pragma unroll
      for (int i = 0; i < kPieces; i++) x[r][i] = is_there(i, r) ? uint4{} : uint4{0, tag, 0, tag};
#pragma unroll 1
    for (uint32_t n = 0;; n++) {  // what has come is not loaded again
      const uint8_t* base = opaque(p.residual) + piece(0) * 16;
      bool ok = true;
#pragma unroll
      for (int r = 0; r < NB; r++, base += p.hidden * 4)
#pragma unroll
        for (int i = 0; i < kPieces; i++) {
          if (tagged(x[r][i], tag)) continue;
          ok = false, x[r][i] = load_volatile(base + i * (kConsumers * 32 * 16));
        }
      if (ok) break;
      if (n) spin(p, n, ordinal, WaitKind::kData, x[0][0].y, tag);
    }
  }

  // residual x norm weight, unscaled (the storer applies 1 / rms), and this warp's share of the sum of squares. All rows'
  // loads are in flight together; 16 bytes are four values, and what lane t of a product needs of a k-tile.
  __device__ __forceinline__ void norm(int layer) {
    const PackPlan plan = PackPlan::of(p.hidden);
    const float* weight = layer == p.n_layers ? p.final_norm : p.layers[layer].norm;
    const uint32_t tag = tag_of(p, layer);
    float2 wt[kPieces][2] = {};
#pragma unroll
    for (int i = 0; i < kPieces; i++) {
      const float* at = weight + (piece(i) >> 2) * 16 + t * 2;
      if (!is_there(i, 0)) continue;
      wt[i][0] = __ldg(reinterpret_cast<const float2*>(at));
      wt[i][1] = __ldg(reinterpret_cast<const float2*>(at + 8));
    }
    uint4 x[NB][kPieces];
    fetch_residual(tag, x);
    sync();  // nobody reads what lies in `act`
#pragma unroll
    for (int r = 0; r < NB; r++) {
      if (r >= p.n_rows) break;
      float squares = 0.f;
#pragma unroll
      for (int i = 0; i < kPieces; i++) {
        const float2 a = unpack_bf16(x[r][i].x), b = unpack_bf16(x[r][i].z);
        squares += (a.x * a.x + a.y * a.y) + (b.x * b.x + b.y * b.y);
        if (piece(i) < plan.k_tiles() * 4)
          *reinterpret_cast<uint2*>(f().act + ((piece(i) >> 2) * NB + r) * kRowBytes + t * 8) = {
              pack_bf16(a.x * wt[i][0].x, a.y * wt[i][0].y),
              pack_bf16(b.x * wt[i][1].x, b.y * wt[i][1].y)};
      }
#pragma unroll
      for (int i = 16; i; i >>= 1) squares += __shfl_xor_sync(~0u, squares, i);
      if (lane == 0) f().square_sum[layer & 1][r][w] = squares;
    }
    sync();
    normed_layer = layer;
  }

  // GEMMs of the normed residual, which lies in `act`: tiles of 16 output rows. Gate/up tiles of experts come as items.
  __device__ __forceinline__ void normed_gemm(const TaskDescriptor& d) {
    const PackPlan plan = PackPlan::of(p.hidden);
    const bool claimed = d.opcode == static_cast<int>(Opcode::kMoeUpGateActDrain);
    const uint8_t* x = f().act + g % NB * kRowBytes +
                       t * 8;  // columns past the batch repeat rows; nobody reads them
#pragma unroll 1
    for (int i = 0; claimed || i < d.tile_count; i++) {
      const int item = claimed ? next_item() : kNoItem;
      if (claimed && item == kNoItem) return end_of_items();
      tile(plan, x, NB * kRowBytes, item);
    }
  }
  // Tells the storer that a claimed task has no more tiles.
  __device__ __forceinline__ void end_of_items() {
    const float nothing[4] = {};
    give(nothing, w, 1, kNoItem);
    this->units++;
  }

  // GEMMs of what other SMs made: attention output, dense hidden units, experts' hidden units (down). Whose turn a stage is
  // depends on the matrix alone. That warp fetches the activations, straight from where they were made and as operands of
  // its products: no copy in shared memory, and no warp waits for another. Each stage's sum stands alone (see `fold`).
  template <bool kExperts>
  __device__ __forceinline__ void fetched_gemm(const TaskDescriptor& d, const Layer& layer) {
    const bool o = d.opcode == static_cast<int>(Opcode::kOProj);
    const int k = o ? p.n_heads * p.head_dim : layer.intermediate;
    const PackPlan plan = PackPlan::of(k);
    const uint32_t tag = tag_of(p, d.layer);
    if (kExperts) mbar_wait(p, &f().route_full, (routed_layers - 1) & 1, ordinal, WaitKind::kRoute);
#pragma unroll 1
    for (int i = 0; i < d.tile_count; i++) {
      float sum[4] = {};
      if constexpr (kExperts)
        expert_tile(f().route[d.layer & 1], plan, k, tag, sum);
      else
        plain_tile(o ? p.attn : p.ffn, plan, k, tag, sum);
      give(sum, w, 1, kNoItem);
      this->units++;
    }
  }

  // ---------------------------------------------------------------- rows as columns
  // All rows against a matrix that serves them all. A 16-byte piece is what a lane needs of one row for one k-tile. A load
  // brings 512 bytes: kTiles k-tiles of NB rows, the one that lane g is of is g / NB. In the product of k-tile q of a load
  // only the columns q * NB .. count, so that its sum stays in these columns.
  static constexpr int kTiles = 8 / NB;
  static constexpr int kLoads = 2 * NB;  // of half a stage: its even or its odd octets

  __device__ __forceinline__ void plain_tile(const uint8_t* base, const PackPlan& plan, int k,
                                             uint32_t tag, float (&sum)[4]) {
    constexpr bool kBoth = NB <= 4;  // both halves under way at once; 64 registers
    const auto start = pos;
#pragma unroll 1
    for (int j = w; j < plan.stages; j += kConsumers) {
      const int first = j * plan.octets * 8, n_tiles = min(k / 16 - first, plan.octets * 8);
      const uint8_t* from =
          base + (static_cast<size_t>(g % NB) * k + (first + g / NB) * 16) * 4 + t * 16;
      uint4 x[kBoth ? 2 : 1][kLoads];
      load_columns(from, n_tiles, 0, tag, x[0]);
      if constexpr (kBoth) load_columns(from, n_tiles, 1, tag, x[1]);
      pos = start.ahead(j);
      const uint4* a = stage(pos);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        uint4(&y)[kLoads] = x[kBoth ? half : 0];
        if (!kBoth && half) load_columns(from, n_tiles, half, tag, y);
        settle(from, half, tag, y);
        if (half == 0) stamp(p, 5, static_cast<int>(tag & 255));
        float c[NB][4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int octet = half + 2 * i;
          if (octet < plan.octets) columns_octet(a + octet * 8 * 32, y, i, c);
        }
        if (half < plan.octets) fold_columns(c, sum);
      }
      release_whole(pos);
    }
    pos = start.ahead(plan.stages);
  }
  // Whether this lane has something to load as piece `i` of half a stage.
  __device__ __forceinline__ bool has_piece(int i, int n_tiles, int half) const {
    return tile_of(i, half) + g / NB < n_tiles && g % NB < p.n_rows;
  }
  __device__ __forceinline__ static constexpr int tile_of(int i, int half) {
    return (half + 2 * (i / NB)) * 8 + i % NB * kTiles;
  }
  // What this lane has nothing to load for is zero, as if it had come.
  __device__ __forceinline__ void load_columns(const uint8_t* from, int n_tiles, int half,
                                               uint32_t tag, uint4 (&x)[kLoads]) const {
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
      x[i] = {0, tag, 0, tag};
      if (has_piece(i, n_tiles, half)) x[i] = load_volatile(from + tile_of(i, half) * 64);
    }
  }
  // Until all that was loaded carries the tag.
  __device__ __forceinline__ void settle(const uint8_t* from, int half, uint32_t tag,
                                         uint4 (&x)[kLoads]) const {
#pragma unroll 1
    for (uint32_t n = 1;; n++) {
      bool ok = true;
#pragma unroll
      for (int i = 0; i < kLoads; i++) {
        if (tagged(x[i], tag)) continue;
        ok = false, x[i] = load_volatile(from + tile_of(i, half) * 64);
      }
      if (ok) break;
      spin(p, n, ordinal, WaitKind::kData, x[0].y, tag);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void columns_octet(const uint4* a, const uint4 (&x)[kLoads], int i,
                                                float (&c)[NB][4]) const {
    constexpr int kAtOnce = NB == 8 ? 4 : 8;  // registers
#pragma unroll
    for (int first = 0; first < 8; first += kAtOnce) {
      uint4 av[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) av[j] = a[(first + j) * 32];
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) {
        const int tile = first + j;
        const bool mine = g / NB == tile % kTiles;
        const uint4& v = x[i * NB + tile / kTiles];
        mma_bf16(c[tile / kTiles], av[j], mine ? v.x : 0u, mine ? v.z : 0u);
      }
    }
  }
  // Adds the sum of eight partial sums, those of k-tiles 0, 1, ... 7 (mod 8): ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
  // The low bits of the k-tile chose the columns, the others the accumulator.
  __device__ __forceinline__ static void fold_columns(float (&c)[NB][4], float (&sum)[4]) {
#pragma unroll
    for (int a = 0; a < NB; a++) {
      if constexpr (NB == 1) c[a][0] += c[a][1], c[a][2] += c[a][3];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if constexpr (NB <= 2) c[a][i] += __shfl_xor_sync(~0u, c[a][i], 1);
        if constexpr (NB <= 4) c[a][i] += __shfl_xor_sync(~0u, c[a][i], 2);
      }
    }
#pragma unroll
    for (int n = 1; n < NB; n *= 2)
#pragma unroll
      for (int a = 0; a + n < NB; a += 2 * n)
#pragma unroll
        for (int i = 0; i < 4; i++) c[a][i] += c[a + n][i];
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] += c[0][i];
  }

  // ---------------------------------------------------------------- rows of experts
  // What one warp does of a tile of the down projections: the stages that are its turn, and of each the rows that are
  // routed there, one after the other.
  struct Turn {
    int u = 0, stage = 0, i = 0,
        end = 0;  // expert of the union, stage of its matrix; pair, and the last one's end
  };
  __device__ __forceinline__ bool find(const Route& route, const PackPlan& plan, Turn& turn) const {
#pragma unroll 1
    for (; turn.u < route.n_experts; turn.u++) {
      const RouteEntry e = route.entry[turn.u];
      turn.stage = (w - e.expert * plan.stages) & (kConsumers - 1);
      turn.i = e.begin, turn.end = e.begin + __popc(e.rows);
      if (turn.stage < plan.stages) return true;
    }
    return false;
  }
  // Where this lane's pieces of a turn's row are; their number is that of the stage's octets, less padding of k.
  __device__ __forceinline__ const uint8_t* pair_at(const Route& route, const PackPlan& plan, int k,
                                                    const Turn& turn) const {
    return p.ffn + (static_cast<size_t>(route.pair[turn.i]) * k + turn.stage * plan.stage_k()) * 4 +
           lane * 16;
  }
  __device__ __forceinline__ void load_pair(const uint8_t* from, const PackPlan& plan, int k,
                                            const Turn& turn, uint32_t tag, uint4 (&x)[4]) const {
    const int first = turn.stage * plan.octets * 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x[i] = {0, tag, 0, tag};
      if (i < plan.octets && first + i * 8 + g < k / 16) x[i] = load_volatile(from + i * 512);
    }
  }
  // A product waits for the one before it that adds to the same registers, so an octet's are spread over several sums. Each
  // column is in one of them, the others hold its zeros: the row's sum keeps its bits.
  static constexpr int kSums = 4;
  // One row: k-tile j of an octet is lane g == j's, so its product stays in column j.
  __device__ __forceinline__ void expert_tile(const Route& route, const PackPlan& plan, int k,
                                              uint32_t tag, float (&sum)[4]) {
    const auto start = pos;
    float total[NB][2] = {};
    uint4 x[4];
    Turn turn;
    bool more = find(route, plan, turn);
    const uint8_t* from = nullptr;
    if (more) from = pair_at(route, plan, k, turn), load_pair(from, plan, k, turn, tag, x);
    int at = 0;  // stage of the task that `pos` stands at
    const uint4* a = nullptr;
#pragma unroll 1
    while (more) {
      const int here = turn.u * plan.stages + turn.stage, row = route.pair[turn.i] / p.top_k;
      if (!a) pos = pos.ahead(here - at), at = here, a = stage(pos);
      settle_pair(from, tag, x);
      uint2 b[4];
#pragma unroll
      for (int i = 0; i < 4; i++) b[i] = {x[i].x, x[i].z};
      Turn next = turn;
      if (++next.i == next.end) next.u++, more = find(route, plan, next);
      if (more) from = pair_at(route, plan, k, next), load_pair(from, plan, k, next, tag, x);
      float c[2][kSums][4] = {};
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (i < plan.octets) row_octet(a + i * 8 * 32, b[i], c[i & 1]);
      if (!more || next.u != turn.u) release_whole(pos), a = nullptr;
      fold_row(c, row, total);
      turn = next;
    }
    pos = start.ahead(route.n_experts * plan.stages);
#pragma unroll
    for (int r = 0; r < NB; r++)
      if (t == r >> 1) sum[r & 1] = total[r][0], sum[2 + (r & 1)] = total[r][1];
  }
  __device__ __forceinline__ void settle_pair(const uint8_t* from, uint32_t tag,
                                              uint4 (&x)[4]) const {
    this->settle_pieces(tag, x, [&](int i) { return from + i * 512; });
    __syncwarp();
  }
  __device__ __forceinline__ void row_octet(const uint4* a, uint2 b, float (&c)[kSums][4]) const {
    uint4 av[8];
#pragma unroll
    for (int tile = 0; tile < 8; tile++) av[tile] = a[tile * 32];
#pragma unroll
    for (int tile = 0; tile < 8; tile++)
      mma_bf16(c[tile % kSums], av[tile], g == tile ? b.x : 0u, g == tile ? b.y : 0u);
  }
  // Adds the even and the odd octets' sums, each over its columns as in fold_columns, to the row's totals.
  __device__ __forceinline__ void fold_row(float (&c)[2][kSums][4], int row,
                                           float (&total)[NB][2]) const {
    float low = 0.f, high = 0.f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int i = 1; i < kSums; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) c[half][0][j] += c[half][i][j];
      float x = c[half][0][0] + c[half][0][1], y = c[half][0][2] + c[half][0][3];
#pragma unroll
      for (int i = 1; i < 4; i *= 2)
        x += __shfl_xor_sync(~0u, x, i), y += __shfl_xor_sync(~0u, y, i);
      low += x, high += y;
    }
#pragma unroll
    for (int r = 0; r < NB; r++)
      if (r == row) total[r][0] += low, total[r][1] += high;
  }
};

}  // namespace pointcode::mk
