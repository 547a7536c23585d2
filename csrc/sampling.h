// Chooses the next token from a row of logits. Order: mask, bias, penalties, temperature, top_k,
// top_p, min_p, draw.
#pragma once

#include <cstdint>
#include <vector>

#include "step_backend.h"
#include "token_noise.h"

namespace pointcode {

// The draw is a Gumbel maximum: the kept token with the largest  logit / temperature -
// log(-log1p(-noise)). Not thread-safe: one Sampler per thread that samples. Keeps buffers of the
// vocabulary's size.
class Sampler {
 public:
  explicit Sampler(int32_t vocab);

  // `logits` has `vocab` values. `row.position` is the position of the token that the logits
  // follow; a NaN among the logits gives RowStatus::kNan. Log-probabilities are those of the
  // model's own distribution (before mask, bias, penalties and temperature): the chosen token
  // first, then the n_logprobs most likely ones.
  void sample(const float* logits, const BatchRow& row, RowResult& result);

 private:
  struct Candidate {
    float logit;  // after temperature
    int32_t token;
  };
  struct Top {
    int32_t token;
    float logit;
    bool has_nan;
  };

  Top find_top(const float* logits) const;
  const float* adjust(const float* logits, const BatchRow& row);
  void apply_penalties(const SamplingConfig& config, const std::vector<int32_t>& history);
  int32_t draw(const float* logits, const Top& top, const SamplingConfig& config, int32_t position);
  void keep_top_k(int32_t top_k);
  void keep_top_p(float top_p, float top_logit);
  void write_logprobs(const float* logits, const Top& top, int32_t n, RowResult& result);

  int32_t vocab_;
  std::vector<float> adjusted_;
  std::vector<int32_t> counts_;  // of each token in the history; all 0 between calls
  std::vector<Candidate> candidates_;
  std::vector<int32_t> order_;
};

}  // namespace pointcode
