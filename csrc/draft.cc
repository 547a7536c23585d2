#include "draft.h"

#include <algorithm>

namespace pointcode {
namespace {

constexpr size_t kMaxScan = size_t{1} << 16;  // tokens looked back
constexpr double kGain = 0.15;                // weight of a new observation
constexpr double kReturn = 0.01;              // of what other times say of one that is not observed

constexpr size_t kBlock = 128;  // tokens looked over at once

// Whether one of tokens [begin, end) ends the same kMinMatch tokens as `last` does. No branches: the
// compiler makes vectors of it, and few blocks hold any.
bool any_match(const int32_t* begin, const int32_t* end, const int32_t* last) {
  static_assert(kMinMatch == 3);
  int found = 0;
  for (const int32_t* at = begin; at < end; ++at)
    found |= (at[0] == last[0]) & (at[-1] == last[-1]) & (at[-2] == last[-2]);
  return found != 0;
}

}  // namespace

Draft look_up_draft(const std::vector<int32_t>& history, int max_tokens) {
  Draft draft;
  const size_t size = history.size();
  if (size <= kMinMatch || max_tokens < 1) return draft;
  const size_t first = size > kMaxScan ? size - kMaxScan : kMinMatch - 1;
  size_t next = 0;  // the index behind the best occurrence
  const int32_t* last = &history.back();
  size_t checked = size - 1;  // blocks from here on have been looked over
  for (size_t i = size - 1; i-- > first && draft.match < kMaxMatch;) {
    if (i < checked) {
      checked = i >= first + kBlock ? i + 1 - kBlock : first;
      if (!any_match(&history[checked], &history[i] + 1, last)) {
        i = checked;
        continue;
      }
    }
    int match = 0;
    while (match < kMaxMatch && i >= static_cast<size_t>(match) &&
           history[i - static_cast<size_t>(match)] ==
               history[size - 1 - static_cast<size_t>(match)])
      ++match;
    if (match < kMinMatch || match <= draft.match) continue;
    draft.match = match;
    next = i + 1;
  }
  if (draft.match == 0) return draft;
  draft.n = std::min(max_tokens, kMaxDraft);
  for (size_t j = 0; j < static_cast<size_t>(draft.n); ++j)
    draft.tokens[j] = next + j < size ? history[next + j] : draft.tokens[next + j - size];
  return draft;
}

int Acceptance::bucket(int match) { return match < 5 ? 0 : match < 9 ? 1 : match < 17 ? 2 : 3; }

void Acceptance::observe(int match, int n_tried, int n_kept) {
  double& rate = rate_[static_cast<size_t>(bucket(match))];
  for (int i = 0; i < n_kept; ++i) rate += kGain * (1.0 - rate);
  if (n_kept < n_tried) rate -= kGain * rate;
}

double DraftPlanner::cost(int n_rows) const {
  int seen = 0;  // the timed size nearest below, else the nearest above
  for (int n = 1; n <= kMaxRows && (seen == 0 || n <= n_rows); ++n)
    if (seconds_[static_cast<size_t>(n)] > 0.0) seen = n;
  if (seen == 0) return shape(n_rows);
  return seconds_[static_cast<size_t>(seen)] * shape(n_rows) / shape(seen);
}

void DraftPlanner::observe_step(int n_rows, double seconds) {
  double& known = seconds_[static_cast<size_t>(n_rows)];
  known = known > 0.0 ? known + kGain * (seconds - known) : seconds;
  // What was timed long ago, or in a bad moment, moves towards what this step suggests.
  for (int n = 1; n <= kMaxRows; ++n) {
    double& other = seconds_[static_cast<size_t>(n)];
    if (n != n_rows && other > 0.0) other += kReturn * (known * shape(n) / shape(n_rows) - other);
  }
}

void DraftPlanner::plan(std::span<Candidate> candidates, int n_rows) const {
  std::array<int32_t, kMaxRows> chosen{}, best{};
  std::array<double, kMaxRows> gain{};  // probability that the next token of the draft is kept
  for (size_t i = 0; i < candidates.size(); ++i) gain[i] = candidates[i].rate;
  double expected = n_rows, best_speed = expected / cost(n_rows);
  for (int total = 1; total <= kMaxRows - n_rows; ++total) {
    size_t most = candidates.size();
    for (size_t i = 0; i < candidates.size(); ++i)
      if (chosen[i] < candidates[i].n && (most == candidates.size() || gain[i] > gain[most]))
        most = i;
    if (most == candidates.size()) break;
    expected += gain[most];
    gain[most] *= candidates[most].rate;
    ++chosen[most];
    const double speed = expected / cost(n_rows + total);
    if (speed > best_speed) best_speed = speed, best = chosen;
  }
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i].n = best[i];
}

}  // namespace pointcode
