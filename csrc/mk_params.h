// What the host hands to the decode megakernel. Plain data: shared by host C++, device code and the tests.
#pragma once

#include <cstdint>

#include "leader.h"
#include "task.h"

#ifdef __CUDACC__
#define POINTCODE_HOST_DEVICE __host__ __device__
#else
#define POINTCODE_HOST_DEVICE
#endif

// What tests look up by name in the extension, whose symbols are hidden otherwise.
#define POINTCODE_EXPORT extern "C" __attribute__((visibility("default")))

namespace pointcode::mk {

constexpr int kThreads = 384;  // 12 warps: controller, producer, storer, combiner, 8 consumers
constexpr int kConsumers = 8;  // consumer warps; each takes whole stages, in turn
constexpr int kStageBytes =
    16384;  // ring stage: 16 rows x 512 (K = 2048, 4096), or one K or V page of one head
constexpr int kMaxSplits = 33;    // attention splits that one combiner merges
constexpr int kMaxExperts = 128;  // four router logits per lane
constexpr int kMaxTopK = 8;
constexpr int kMaxHidden = 2048;  // a normed row stays in shared memory
constexpr int kMaxHeadDim = 128;
constexpr int kMaxGroup = 8;  // query heads per KV head: the N = 8 columns of one mma

enum LayerFlag : int32_t { kLayerRope = 1, kLayerSliding = 2, kLayerMoe = 4 };

constexpr int kCounterWords = 32;  // a counter has a 128-byte line of its own
constexpr int kRouteWords = 146;   // sizeof(Route) / 4, rounded up to a pair

// Packed weights of one layer (see PackPlan for the layout) and its KV pages.
struct Layer {
  const uint8_t* qkv;
  const uint8_t* o;
  const uint8_t* router;
  const uint8_t* upgate;  // dense, or a bank of experts
  const uint8_t* down;
  const float* norm;  // (hidden)
  uint8_t* k;         // [page][kv head][64 tokens x head_dim] bf16 in mma fragment order
  uint8_t* v;
  int32_t flags;
  int32_t intermediate;
};

// How a (rows, K) matrix is cut: tiles of 16 rows; each tile is `stages` ring stages; a stage is `octets` x 8 k-tiles
// (16 x 16, 512 bytes in mma A-fragment order). K is padded with zeros.
struct PackPlan {
  int stages, octets;
  POINTCODE_HOST_DEVICE static PackPlan of(int k) {
    const int octets = (k + 127) / 128, stages = (octets + 3) / 4;
    return {stages, (octets + stages - 1) / stages};
  }
  POINTCODE_HOST_DEVICE int stage_bytes() const { return octets * 8 * 512; }
  POINTCODE_HOST_DEVICE int tile_bytes() const { return stages * stage_bytes(); }
  POINTCODE_HOST_DEVICE int k_tiles() const { return stages * octets * 8; }
  POINTCODE_HOST_DEVICE int stage_k() const { return octets * 128; }
  // Partial sums that the consumers hand over for one tile: stage j belongs to part j % 8.
  POINTCODE_HOST_DEVICE int parts() const { return stages < kConsumers ? stages : kConsumers; }
};

// Where a bounded wait that expired says so. Written by the first one only; valid when the abort flag is set.
struct Mailbox {
  uint32_t who;  // SM << 16 | warp << 8 | WaitKind
  uint32_t ordinal, seen, wanted;
};
enum class WaitKind : int32_t {
  kNone,
  kDescriptor,
  kRingFull,
  kRingEmpty,
  kReduceFull,
  kReduceEmpty,
  kWarpSync,
  kRoute,
  kData,
  kCounter,
  kItem,
  kChosen,
  kStart
};

// Activations handed between SMs are "tagged": 8 bytes carry 4 bytes of payload (one fp32 or two bf16) and a 4-byte tag
// (step, layer); the reader polls the data itself, so a hand-off needs no fence and no counter. "operands": the pairs of a
// row in the order of operand_at(), k-tile by k-tile.
struct Params {
  int32_t hidden, n_heads, n_kv_heads, head_dim, vocab, n_experts, top_k, n_layers, n_rows, window,
      n_splits;
  int32_t norm_topk, max_pages, n_queues, n_owners;  // n_owners: SMs that own residual tiles
  float eps, q_scale, logit_scale, rope_theta;       // q_scale: attention scale x log2(e)
  const Layer* layers;                               // (n_layers)
  const float* final_norm;
  const uint8_t* lm_head;     // packed (vocab, hidden); the embedding is read from it when tied
  const uint8_t* embed;       // packed like lm_head
  const int32_t* tokens;      // (n_rows)
  const int32_t* positions;   // (n_rows)
  const int32_t* page_table;  // (2 groups, 8 rows, max_pages)
  uint8_t* residual;  // lean: tagged bf16x2 (8, hidden / 2), operands; else tagged fp32 (8, hidden)
  uint8_t* q;         // tagged bf16x2 (8, heads * head_dim / 2)
  uint8_t* k_new;     // tagged fp32 (8, kv heads * head_dim)
  uint8_t* v_new;
  uint8_t* router;  // tagged fp32 (8, experts)
  uint8_t* part;    // tagged fp32 (8, kv heads, splits, 8 heads, head_dim + 4)
  uint8_t* attn;    // tagged bf16x2 (8, heads * head_dim / 2), operands
  uint8_t* ffn;     // tagged bf16x2 (8, top_k, intermediate / 2), operands
  float* logits;    // (8, vocab)
  const TaskDescriptor* tasks;
  const int32_t* offsets;  // (gridDim + 1)
  uint32_t* queues;  // (2, n_queues): one set per step parity; the other one is zeroed meanwhile
  uint32_t* abort_flag;
  Mailbox* mailbox;         // host-visible
  int32_t in_flight_bytes;  // of the ring's stages, per SM
  uint32_t spin_limit;      // turns of one wait before it expires (a turn is 0.1 to 1 us)
  uint64_t* trace;          // (SMs, trace_slots) or null
  int32_t trace_slots;
  uint32_t step;  // tag = step * 256 + layer; never 0
  // The published orders alone: hand-overs in small tasks of their own, ordered by counters.
  int32_t counted;  // 0: the lean order
  int32_t n_counters;
  uint32_t* counters;  // (2, n_counters, kCounterWords), used and zeroed as the queues are
  uint8_t* normed;     // tagged bf16x2 (8, hidden / 2), operands
  uint8_t* o_out;      // tagged fp32 (8, hidden)
  uint8_t* ffn_out;    // tagged fp32 (8, hidden)
  uint8_t* topk;       // tagged (8, top_k) pairs: expert, weight (fp32)
  uint8_t* route;      // tagged words of Route
  uint8_t* moe_in;     // tagged bf16x2 (8 top_k, hidden / 2), operands: rows grouped by expert
  uint8_t* moe_out;    // tagged fp32 (8 top_k, hidden), by row * top_k + slot
  // Rows may be consecutive tokens of one sequence: a chain, whose rows follow each other and share their pages.
  int32_t first_row[kMaxRows];  // of the row's chain; itself where it is alone
  int32_t table_row[kMaxRows];  // whose page table is the row's
  // For the sampler. leaders: (n_rows, gridDim), each SM's of its own tiles; null: not wanted.
  Leader* leaders;
  RowDraw draw[kMaxRows];
};

// Launches the kernel that runs the published orders (p.counted); a cudaError_t.
int launch_counted(const Params& p, int n_sms, void* stream);

// Bytes of dynamic shared memory for a batch of up to `n_rows`, and ring stages in it.
int smem_bytes(int n_rows);
int ring_stages(int n_rows);

}  // namespace pointcode::mk
