// A model's sizes and constants as the backends see them, and where its weights lie.
#pragma once

#include <cstdint>
#include <vector>

namespace pointcode {

enum class WeightFormat : int32_t {  // values are ours; block layouts of the Q formats are GGUF's
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  kQ8_0 = 3,
  kQ4_0 = 4,
  kQ4_1 = 5,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ4_K = 8,
  kQ5_K = 9,
  kQ6_K = 10,
};

enum class WeightKind : int32_t {  // per layer; the last three are per model and stored at layer =
                                   // n_layers
  kNormAttn = 0,
  kQ,
  kK,
  kV,
  kQBias,
  kKBias,
  kVBias,
  kO,
  kNormFfn,
  kGate,
  kUp,
  kDown,
  kRouter,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kFinalNorm,
  kLmHead,
  kEmbed,
};
constexpr int kNumWeightKinds = 19;

// A row-major matrix (rows, cols) or a bank of `count` such matrices. Not owned.
struct Weight {
  WeightFormat format = WeightFormat::kF32;
  const void* data = nullptr;  // nullptr: the model has no such weight
  int32_t rows = 0, cols = 0, count = 1;
  int64_t row_bytes = 0, matrix_bytes = 0;
};

struct LayerShape {
  bool rope = true, sliding = false, moe = false;
  int32_t intermediate = 0;  // hidden width of the dense FFN, or of one expert
};

struct ModelShape {
  int32_t hidden = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, vocab = 0, n_layers = 0;
  int32_t n_experts = 0, top_k = 0, window = 0;  // window: keys including the current one; 0: none
  bool parallel_block = false;                   // x + attn(norm(x)) + ffn(norm(x)) with one norm
  bool rope_interleaved = false;                 // pairs (2i, 2i+1); otherwise (i, i + head_dim/2)
  bool layer_norm = false;                       // bias-free LayerNorm instead of RMSNorm
  bool norm_topk = false;                        // expert weights divided by their sum
  bool softmax_router = false;                   // softmax over all experts instead of sigmoid
  float eps = 1e-6f, rope_theta = 10000.f, attn_scale = 1.f, logit_scale = 1.f;
  std::vector<LayerShape> layers;
  std::vector<Weight>
      weights;  // [(n_layers + 1) * kNumWeightKinds], index layer * kNumWeightKinds + kind

  const Weight& weight(int layer, WeightKind kind) const {
    return weights[static_cast<size_t>(layer) * kNumWeightKinds + static_cast<size_t>(kind)];
  }
};

}  // namespace pointcode
