// Prompt-lookup drafts: tokens that followed an earlier occurrence of a sequence's newest tokens
// are tried in the same step, as further rows. A step keeps those that the model chooses too, so a
// draft changes the speed and never the text.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "task.h"

namespace pointcode {

constexpr int kMaxDraft = kMaxRows - 1;
constexpr int kMinMatch = 3;   // tokens that must have occurred before
constexpr int kMaxMatch = 32;  // longer matches count as this long

struct Draft {
  int32_t n = 0;
  int32_t match = 0;  // tokens before the draft that occurred before it the last time, too
  std::array<int32_t, kMaxDraft> tokens{};
};

// What followed the longest earlier occurrence of the history's end, the latest one of several; it
// goes on into itself where it reaches the end (a loop). n == 0 when nothing matches.
Draft look_up_draft(const std::vector<int32_t>& history, int max_tokens);

// How often drafts of one sequence were right, by the length of the match.
class Acceptance {
 public:
  double rate(int match) const { return rate_[static_cast<size_t>(bucket(match))]; }
  // A step tried `n_tried` tokens of a draft and kept `n_kept`. What a step without drafts chose tells
  // as much of the first token.
  void observe(int match, int n_tried, int n_kept);

 private:
  static constexpr int kBuckets = 4;
  static constexpr std::array<double, kBuckets> kPrior = {0.5, 0.65, 0.75, 0.85};
  static int bucket(int match);
  std::array<double, kBuckets> rate_ = kPrior;
};

// Chooses how many draft tokens take part in a step: as many as make the most tokens a second
// likely, by the time that steps of each size have taken.
class DraftPlanner {
 public:
  struct Candidate {
    int32_t n = 0;      // in: tokens of the draft; out: how many take part
    double rate = 0.0;  // probability that a token is right when all before it are
  };
  // `n_rows` rows take part anyway; the candidates, at most one a row, share the step's free rows.
  void plan(std::span<Candidate> candidates, int n_rows) const;
  void observe_step(int n_rows, double seconds);
  double cost(int n_rows) const;  // expected seconds of a step, or in steps of one row before any
  void assume(double row_cost) { row_cost_ = row_cost; }  // of another row, in steps of one

 private:
  double shape(int n_rows) const { return 1.0 + row_cost_ * (n_rows - 1); }
  double row_cost_ = 0.15;
  std::array<double, kMaxRows + 1> seconds_{};  // 0: not seen yet
};

}  // namespace pointcode
