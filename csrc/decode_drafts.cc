// Which drafts the decode thread looks up and tries; everything here runs on that thread.
//
// On a backend that runs ahead a draft is looked up after every token all the same, but without those under
// way. While one is worth trying no step is launched ahead; once the steps under way have ended, what is
// tried is looked up again, from the whole sequence. A draft that comes to nothing costs one gap between
// steps.
#include <algorithm>

#include "decode_service.h"

namespace pointcode {

// Looks up what may follow, once after every token. Penalties count the tokens before a row, which
// for a draft's rows are not in the history yet.
void DecodeService::prepare_draft(Row& row) {
  if (row.has_draft) return;
  row.has_draft = true;
  row.draft.n = 0;
  const SamplingConfig& s = row.sampling;
  const bool plain =
      s.repetition_penalty == 1.f && s.frequency_penalty == 0.f && s.presence_penalty == 0.f;
  const int room = std::min(row.max_tokens - row.n_generated, row.page_capacity() - row.position);
  if (!drafts_ || !plain || !backend_->takes_consecutive_rows()) return;
  row.draft = look_up_draft(row.history, std::min(kMaxDraft, room - 1));
}

// Draft tokens of each selected row that are worth trying.
std::array<int, kMaxRows> DecodeService::planned_drafts() const {
  std::array<DraftPlanner::Candidate, kMaxRows> wanted;
  for (int i = 0; i < n_selected_; ++i) {
    const Row& row = slots_[selected_[i]];
    // A row that is masked for this token alone (the first of a grammar) has no masks for a draft.
    const bool one_mask = row.masked && row.answer.load(std::memory_order_relaxed) < 2;
    wanted[i] = {one_mask ? 0 : row.draft.n, row.acceptance.rate(row.draft.match)};
  }
  planner_.plan({wanted.data(), static_cast<size_t>(n_selected_)}, n_selected_);
  std::array<int, kMaxRows> tried{};
  for (int i = 0; i < n_selected_; ++i) tried[i] = wanted[i].n;
  return tried;
}

// Whether the rows under way should stop running ahead for a draft. It was looked up without the token
// under way; what is tried then is looked up again.
bool DecodeService::draft_pays() const {
  const std::array<int, kMaxRows> tried = planned_drafts();
  return std::any_of(tried.begin(), tried.end(), [](int n) { return n > 0; });
}

}  // namespace pointcode
