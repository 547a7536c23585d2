// What the megakernel backend does when rows change and before a step: page tables, chains, tokens.
#include "megakernel_backend.h"

#if POINTCODE_CUDA
#include <algorithm>

namespace pointcode {

void MegakernelBackend::set_batch(const std::vector<BatchRow>& rows) {
  if (!failure_.empty()) fail(failure_);
  CHECK_THAT(n_under_way_ == 0, "the batch changes while ", n_under_way_, " steps are under way");
  CHECK_THAT(rows.size() <= lists_.size(), "no schedule for ", rows.size(), " rows");
  if (rows.empty()) return;
  check_rows(rows);
  check_cuda(cudaStreamSynchronize(stream_.get()),
             "waiting for the last step");  // the staging memory is free now
  n_sequences_ = find_chains(rows);
  upload_pages(rows);
  sampler_->set_batch(rows, params_.table_row);
  set_draws(rows.size());
  device_token_.fill(-1);  // the first step uploads tokens and positions
}

// Nothing is uploaded and nothing waited for: what belongs to a sequence stays where it is, and which
// sequence a row belongs to is an argument of the next launch.
void MegakernelBackend::regroup(const std::vector<BatchRow>& rows) {
  if (!failure_.empty()) fail(failure_);
  CHECK_THAT(n_under_way_ == 0, "rows are regrouped while ", n_under_way_, " steps are under way");
  CHECK_THAT(rows.size() <= lists_.size(), "no schedule for ", rows.size(), " rows");
  check_rows(rows);
  const int n = find_chains(rows);
  CHECK_THAT(n == n_sequences_, "rows of ", n, " sequences came for a batch of ", n_sequences_);
  sampler_->regroup(rows, params_.table_row);
  set_draws(rows.size());
}

void MegakernelBackend::set_draws(size_t n_rows) {
  for (size_t r = 0; r < n_rows; ++r) params_.draw[r] = sampler_->draw_of(static_cast<int>(r));
}

// Says of each row which chain and sequence it belongs to; returns how many sequences there are.
int MegakernelBackend::find_chains(const std::vector<BatchRow>& rows) {
  int n = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const bool goes_on = r > 0 && follows(rows[r], rows[r - 1]);
    params_.first_row[r] = goes_on ? params_.first_row[r - 1] : static_cast<int32_t>(r);
    params_.table_row[r] = goes_on ? n - 1 : n++;
  }
  return n;
}

// Whether the row comes right after `before` in its sequence: the place before its own is the one that
// `before` writes.
bool MegakernelBackend::follows(const BatchRow& row, const BatchRow& before) const {
  if (row.position != before.position + 1) return false;
  const int32_t page = before.position / kPageTokens;
  for (int group = 0; group < 2; ++group) {
    if (group_used_[group] && row.pages[group][page] != before.pages[group][page]) return false;
  }
  return true;
}

void MegakernelBackend::check_rows(const std::vector<BatchRow>& rows) const {
  for (const BatchRow& row : rows) {
    CHECK_THAT(row.position / kPageTokens < config_.max_pages, "position ", row.position,
               " is past the ", config_.max_pages, " pages of the longest sequence");
    CHECK_THAT((row.token >= 0 && row.token < vocab_) || row.token == kTokenOfLastStep, "token ",
               row.token, " is outside the vocabulary of ", vocab_);
    for (int group = 0; group < 2; ++group) {
      CHECK_THAT(!group_used_[group] || (row.pages[group] != nullptr &&
                                         row.position / kPageTokens < row.n_pages[group]),
                 "request ", row.request, " has ", row.n_pages[group], " pages of KV group ", group,
                 " and stands at position ", row.position);
    }
  }
}

void MegakernelBackend::upload_pages(const std::vector<BatchRow>& rows) {
  const auto stride = static_cast<size_t>(config_.max_pages);
  size_t most = 1;
  for (int group = 0; group < 2; ++group) {
    for (size_t r = 0; r < rows.size(); ++r) {
      if (params_.first_row[r] != static_cast<int32_t>(r)) continue;
      const size_t n = std::min(static_cast<size_t>(std::max(rows[r].n_pages[group], 0)), stride);
      const auto place = static_cast<size_t>(group) * kMaxRows + params_.table_row[r];
      std::copy_n(rows[r].pages[group], n, host_pages_.data() + place * stride);
      most = std::max(most, n);
    }
  }
  check_cuda(cudaMemcpy2DAsync(pages_.data(), stride * 4, host_pages_.data(), stride * 4, most * 4,
                               2 * kMaxRows, cudaMemcpyHostToDevice, stream_.get()),
             "uploading page tables");
}

// Tokens and positions, unless the device's own are what the caller wants.
void MegakernelBackend::feed(const std::vector<BatchRow>& rows) {
  bool same = true;
  for (size_t r = 0; r < rows.size(); ++r) {
    CHECK_THAT(rows[r].token >= 0, "request ", rows[r].request, " goes on from no step");
    same = same && device_token_[r] == rows[r].token && device_position_[r] == rows[r].position;
    host_tokens_[r] = device_token_[r] = rows[r].token;
    host_tokens_[kMaxRows + r] = device_position_[r] = rows[r].position;
  }
  if (same) return;
  std::fill(device_token_.begin() + static_cast<std::ptrdiff_t>(rows.size()), device_token_.end(),
            -1);  // the copy takes what is there for the others
  check_cuda(cudaMemcpyAsync(tokens_.data(), host_tokens_.data(), 2 * kMaxRows * 4,
                             cudaMemcpyHostToDevice, stream_.get()),
             "uploading tokens");
}

// Behind a step under way, rows can only go on from it.
void MegakernelBackend::expect_next(const std::vector<BatchRow>& rows) const {
  const auto& last = under_way_[static_cast<size_t>(n_under_way_ - 1)];
  CHECK_THAT(!masked_ && rows.size() == static_cast<size_t>(last.n_rows), rows.size(),
             " rows cannot go on from a step of ", last.n_rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    CHECK_THAT(rows[r].token == kTokenOfLastStep && rows[r].position == device_position_[r] &&
                   rows[r].token_mask == nullptr,
               "request ", rows[r].request, " does not go on from the step under way: position ",
               rows[r].position, ", not ", device_position_[r]);
    CHECK_THAT(params_.first_row[r] == static_cast<int32_t>(r), "request ", rows[r].request,
               " has a draft under way, so what follows is not known");
  }
}

}  // namespace pointcode
#endif
