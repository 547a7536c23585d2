#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pointcode {
namespace {

constexpr int kLanes = 16;
constexpr int kBlock = 256;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The noise term -log(-log1p(-v)) lies in [-2.82, 16.64] for v in [2^-24, 1 - 2^-24]: what is
// further below the top cannot be drawn.
constexpr float kReach = 21.f;

float gumbel(float noise) { return -std::log(-std::log1p(-noise)); }

// Largest of n <= kBlock values; lanes are kept apart so that the compiler uses vector maxima.
float block_max(const float* x, int n, bool& has_nan) {
  float best[kLanes];
  int bad[kLanes] = {};
  std::fill(best, best + kLanes, kLowest);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
      bad[j] |= x[i + j] != x[i + j];
    }
  }
  for (; i < n; ++i) {
    best[0] = std::max(best[0], x[i]);
    bad[0] |= x[i] != x[i];
  }
  for (const int b : bad) has_nan = has_nan || b != 0;
  return *std::max_element(best, best + kLanes);
}

bool is_plain(const BatchRow& row) {
  const SamplingConfig& c = *row.sampling;
  return row.token_mask == nullptr && c.logit_bias.empty() && c.repetition_penalty == 1.f &&
         c.frequency_penalty == 0.f && c.presence_penalty == 0.f;
}

}  // namespace

Sampler::Sampler(int32_t vocab)
    : vocab_(vocab), adjusted_(static_cast<size_t>(vocab)), counts_(static_cast<size_t>(vocab)) {}

Sampler::Top Sampler::find_top(const float* logits) const {
  Top top{0, kLowest, false};
  int best_block = 0;
  for (int begin = 0; begin < vocab_; begin += kBlock) {
    const float best = block_max(logits + begin, std::min(kBlock, vocab_ - begin), top.has_nan);
    if (best <= top.logit) continue;
    top.logit = best;
    best_block = begin;
  }
  const float* end = logits + std::min(best_block + kBlock, vocab_);
  const float* at = std::find(logits + best_block, end, top.logit);
  if (at != end) top.token = static_cast<int32_t>(at - logits);
  return top;
}

void Sampler::sample(const float* logits, const BatchRow& row, RowResult& result) {
  const SamplingConfig& config = *row.sampling;
  const Top raw = find_top(logits);
  result.status = raw.has_nan ? RowStatus::kNan : RowStatus::kOk;
  result.token = raw.token;
  result.logprobs.clear();
  if (raw.has_nan) return;
  const bool plain = is_plain(row);
  const float* adjusted = plain ? logits : adjust(logits, row);
  const Top top = plain ? raw : find_top(adjusted);
  result.token = config.temperature > 0.f ? draw(adjusted, top, config, row.position) : top.token;
  if (config.n_logprobs > 0) write_logprobs(logits, raw, config.n_logprobs, result);
}

const float* Sampler::adjust(const float* logits, const BatchRow& row) {
  std::copy(logits, logits + vocab_, adjusted_.begin());
  for (const auto& [token, bias] : row.sampling->logit_bias) {
    if (token >= 0 && token < vocab_) adjusted_[static_cast<size_t>(token)] += bias;
  }
  if (row.history != nullptr) apply_penalties(*row.sampling, *row.history);
  if (row.token_mask == nullptr) return adjusted_.data();
  for (int32_t t = 0; t < vocab_; ++t) {
    if ((row.token_mask[t / 32] >> (t % 32) & 1u) == 0) adjusted_[static_cast<size_t>(t)] = kLowest;
  }
  return adjusted_.data();
}

void Sampler::apply_penalties(const SamplingConfig& config, const std::vector<int32_t>& history) {
  for (const int32_t token : history) {
    if (token >= 0 && token < vocab_) ++counts_[static_cast<size_t>(token)];
  }
  for (const int32_t token : history) {
    if (token < 0 || token >= vocab_) continue;
    const auto t = static_cast<size_t>(token);
    if (counts_[t] == 0) continue;
    float& logit = adjusted_[t];
    logit = logit > 0.f ? logit / config.repetition_penalty : logit * config.repetition_penalty;
    logit -= config.frequency_penalty * static_cast<float>(counts_[t]) + config.presence_penalty;
    counts_[t] = 0;
  }
}

int32_t Sampler::draw(const float* logits, const Top& top, const SamplingConfig& config,
                      int32_t position) {
  const float inverse = 1.f / config.temperature;
  const float top_logit = top.logit * inverse;
  const float reach = config.min_p > 0.f ? std::min(kReach, -std::log(config.min_p)) : kReach;
  // with top_p the mass below min_p counts too, so min_p is applied to the survivors at the end
  const float collect = config.top_p < 1.f ? kReach : reach;
  const float threshold = top.logit - collect * config.temperature;
  candidates_.clear();
  for (int32_t t = 0; t < vocab_; ++t) {
    if (logits[t] >= threshold) candidates_.push_back({logits[t] * inverse, t});
  }
  keep_top_k(config.top_k);
  keep_top_p(config.top_p, top_logit);
  int32_t best = top.token;
  float best_score = top_logit + gumbel(token_noise(config.seed, position, top.token));
  for (const Candidate& candidate : candidates_) {
    if (candidate.logit < top_logit - reach || candidate.logit + 17.5f < best_score) continue;
    const float score =
        candidate.logit + gumbel(token_noise(config.seed, position, candidate.token));
    if (score < best_score || (score == best_score && candidate.token >= best)) continue;
    best = candidate.token;
    best_score = score;
  }
  return best;
}

void Sampler::keep_top_k(int32_t top_k) {
  if (top_k <= 0 || candidates_.size() <= static_cast<size_t>(top_k)) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + top_k - 1, candidates_.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
                   });
  candidates_.resize(static_cast<size_t>(top_k));
}

// The fewest most likely tokens whose probabilities reach top_p; at least one.
void Sampler::keep_top_p(float top_p, float top_logit) {
  if (top_p >= 1.f || candidates_.empty()) return;
  const auto less = [](const Candidate& a, const Candidate& b) {
    return a.logit < b.logit || (a.logit == b.logit && a.token > b.token);
  };
  double total = 0;
  for (const Candidate& candidate : candidates_) total += std::exp(candidate.logit - top_logit);
  std::make_heap(candidates_.begin(), candidates_.end(), less);
  auto rest = candidates_.end();
  for (double mass = 0; rest != candidates_.begin();) {
    std::pop_heap(candidates_.begin(), rest, less);
    --rest;
    mass += std::exp(rest->logit - top_logit);
    if (mass >= top_p * total) break;
  }
  candidates_.erase(candidates_.begin(), rest);
}

void Sampler::write_logprobs(const float* logits, const Top& top, int32_t n, RowResult& result) {
  double total = 0;
  for (int32_t t = 0; t < vocab_; ++t) total += std::exp(logits[t] - top.logit);
  const float log_total = top.logit + static_cast<float>(std::log(total));
  order_.resize(static_cast<size_t>(vocab_));
  for (int32_t t = 0; t < vocab_; ++t) order_[static_cast<size_t>(t)] = t;
  n = std::min(n, vocab_);
  std::partial_sort(order_.begin(), order_.begin() + n, order_.end(),
                    [logits](int32_t a, int32_t b) {
                      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
                    });
  result.logprobs.emplace_back(result.token, logits[result.token] - log_total);
  for (int32_t i = 0; i < n; ++i) {
    const int32_t token = order_[static_cast<size_t>(i)];
    if (token != result.token) result.logprobs.emplace_back(token, logits[token] - log_total);
  }
}

}  // namespace pointcode
