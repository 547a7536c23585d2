// Sampling on the GPU: logits -> one token per row, the same token as csrc/sampling.cc chooses.
// Plain data.
#pragma once

#include <cstdint>

#include "leader.h"

#ifdef __CUDACC__
#define POINTCODE_HOST_DEVICE __host__ __device__
#else
#define POINTCODE_HOST_DEVICE
#endif

namespace pointcode::gpu {

constexpr int kMaxSampleVocab =
    262144;                          // 32-bit histogram cells of one eighth of it cannot overflow
constexpr int kSampleLogprobs = 21;  // 20 alternatives and the chosen token
constexpr uint32_t kStampMask = 0x3fffffff;

constexpr int kMaxSampleRows = 8;

struct SampleRow {  // the fields mean what they mean in SamplingConfig
  float temperature, top_p, min_p;
  float repetition_penalty, frequency_penalty, presence_penalty;
  int32_t top_k, n_logprobs;
  int32_t has_bias, has_penalties, has_mask;
  int32_t position;  // of the token that the logits follow
  uint64_t seed;
  int32_t sequence, reserved;  // sequence: whose bias and counts these are

  POINTCODE_HOST_DEVICE bool is_plain() const { return !has_bias && !has_penalties && !has_mask; }
  POINTCODE_HOST_DEVICE bool keeps_top_k(int32_t vocab) const { return top_k > 0 && top_k < vocab; }
  // Whether the winner among all tokens is worth knowing.
  POINTCODE_HOST_DEVICE bool draws_from_all(int32_t vocab) const {
    return is_plain() && temperature > 0.f && !keeps_top_k(vocab);
  }
};
static_assert(sizeof(SampleRow) == 64);

enum class SampleStatus : uint32_t { kOk = 0, kNan = 1, kAborted = 2 };

// One row's answer, in host memory that the GPU writes. `word` comes last: stamp << 34 | status <<
// 32 | token.
struct SampleResult {
  uint64_t word;
  int32_t n_logprobs, reserved;
  int32_t ids[kSampleLogprobs];
  float values[kSampleLogprobs];
};

struct SampleParams {  // an argument of the kernel, rows and all: nothing is copied for a step
  int32_t n_rows, vocab;
  SampleRow rows[kMaxSampleRows];
  int32_t n_leaders;      // a row; 0: not known
  const Leader* leaders;  // (rows, n_leaders), of all tokens together
  const float* logits;    // (rows, vocab)
  const float* bias;      // (sequences, vocab); read where has_bias
  int32_t* counts;        // (sequences, vocab): of each token in the history; where has_penalties
  const uint32_t* masks;  // (rows, mask_words): bits of allowed tokens; where has_mask
  int32_t mask_words;
  uint32_t stamp;              // <= kStampMask
  int32_t* tokens;             // (rows): becomes the chosen token
  int32_t* positions;          // (rows): becomes that token's position
  const uint32_t* abort_flag;  // not 0: the logits are not valid
  SampleResult* results;       // (rows), host memory
};

}  // namespace pointcode::gpu

// Returns a cudaError_t.
extern "C" int pointcode_sample(const void* params, void* stream);
extern "C" int pointcode_sample_params_size();
