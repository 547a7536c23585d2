// The decode thread's side of DecodeService: everything here runs on that thread.
// decode_drafts.cc has what concerns drafts.
//
// Running ahead. While step n is under way, step n + 1 is launched with the same rows, each fed with the
// token that step n chooses, so that the device need not wait for the host. What step n turns out to
// mean decides what counts of step n + 1:
//   a row ended (stop, NaN, cancelled)   its result is dropped; the control thread takes its pages back
//                                        after park(), and that waits for step n + 1
//   a row needs a grammar's mask now     its result is dropped; the same token is fed again later, to
//                                        the same position, and the backend is told (set_batch)
//   anything else                        the result is what a step launched now would give
// No step is launched ahead when it is known to differ: a row has a mask, a draft that is worth trying,
// its last token or its last place in a page; another row could join; somebody wants to park, or to use
// the device.
#include <sys/eventfd.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "decode_service.h"

namespace pointcode {
namespace {

// Wake-ups are signalled; the bound only limits the damage of a lost one.
constexpr auto kIdleWait = std::chrono::milliseconds(500);
constexpr std::chrono::steady_clock::duration kLongestWay = std::chrono::milliseconds(10);

bool bit_is_set(const std::vector<uint32_t>& bits, int32_t id) {
  const size_t word = static_cast<size_t>(id) / 32;
  return word < bits.size() && (bits[word] >> (id % 32) & 1u) != 0;
}

}  // namespace

int32_t DecodeService::Row::page_capacity() const {
  size_t n = SIZE_MAX;
  for (const auto& table : pages) {
    if (!table.empty()) n = std::min(n, table.size());
  }
  return n == SIZE_MAX ? 0 : static_cast<int32_t>(n) * kPageTokens;
}

void DecodeService::run() {
  while (!stop_.load(std::memory_order_acquire)) {
    const bool idle =
        park_requested_.load(std::memory_order_acquire) || backend_ == nullptr || !any_live();
    if (n_under_way_ == 0 && idle) {
      wait_while_parked();
      continue;
    }
    const uint64_t seen = signals_.load(std::memory_order_acquire);
    if (step_once())
      give_way();
    else
      wait_for_signal(seen);
  }
  finish_steps();
}

void DecodeService::wait_while_parked() {
  std::unique_lock lock(mutex_);
  parked_ = true;
  control_cv_.notify_all();
  while (parked_ && !stop_.load(std::memory_order_relaxed)) decode_cv_.wait_for(lock, kIdleWait);
  begun_ = std::chrono::steady_clock::now();
}

void DecodeService::wait_for_signal(uint64_t seen) {
  std::unique_lock lock(mutex_);
  decode_cv_.wait_for(lock, kIdleWait,
                      [&] { return signals_.load(std::memory_order_relaxed) != seen; });
  begun_ = std::chrono::steady_clock::now();
}

bool DecodeService::step_once() {
  if (n_under_way_ == 0) {
    // One record per row for this step and one per row in case the backend fails.
    if (!ring_has_space()) return false;
    const bool ended_some = select_rows() > 0;
    if (n_selected_ == 0) return ended_some;
  }
  try {
    if (n_under_way_ == 0) load_batch(), launch();
    if (may_run_ahead()) load_ahead(), launch();
    backend_->collect(results_);
  } catch (const std::exception& failure) {
    fail_all(failure.what());
    return true;
  }
  observe_step();
  const RowResult* results = results_.data();
  for (int i = 0; i < n_selected_; results += 1 + n_tried_[i], ++i) {
    Row& row = slots_[selected_[i]];
    if (!row.live()) continue;
    if (row.n_stale > 0)
      --row.n_stale;
    else
      take_results(row, results, n_tried_[i]);
  }
  eventfd_write(event_fd_, 1);
  return true;
}

void DecodeService::launch() {
  backend_->launch(batch_);
  ++n_under_way_;
}

// Counts a collected step. The next one, if it is under way, has begun no later than now.
void DecodeService::observe_step() {
  --n_under_way_;
  const auto now = std::chrono::steady_clock::now();
  const auto elapsed = now - begun_;
  begun_ = now, last_step_ = elapsed;
  busy_ns_.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count(),
                     std::memory_order_relaxed);
  steps_.fetch_add(1, std::memory_order_relaxed);
  planner_.observe_step(static_cast<int>(batch_.size()),
                        std::chrono::duration<double>(elapsed).count());
}

// Before the thread ends: what is under way writes into pages that others own.
void DecodeService::finish_steps() {
  try {
    for (; n_under_way_ > 0; --n_under_way_) backend_->collect(results_);
  } catch (const std::exception&) {
    n_under_way_ = 0;  // a backend that has failed runs nothing any more
  }
}

void DecodeService::give_way() {
  if (n_under_way_ > 0 || !shared_.load(std::memory_order_relaxed)) return;
  if (backend_ == nullptr || !backend_->runs_ahead()) return;
  std::unique_lock lock(mutex_);
  decode_cv_.wait_for(lock, std::min(last_step_, kLongestWay), [this] {
    return !shared_.load(std::memory_order_relaxed) ||
           park_requested_.load(std::memory_order_relaxed) || stop_.load(std::memory_order_relaxed);
  });
  begun_ = std::chrono::steady_clock::now();
}

// ------------------------------ running ahead
bool DecodeService::may_run_ahead() {
  if (!run_ahead_ || !backend_->runs_ahead() || n_under_way_ == kMaxUnderWay) return false;
  if (park_requested_.load(std::memory_order_acquire) || stop_.load(std::memory_order_acquire) ||
      shared_.load(std::memory_order_relaxed))
    return false;
  if (ring_.free_places() < static_cast<size_t>(n_under_way_ + 2) * kMaxRows) return false;
  std::array<bool, kMaxRows> selected{};
  for (int i = 0; i < n_selected_; ++i) {
    selected[selected_[i]] = true;
    if (n_tried_[i] > 0 || !goes_on(slots_[selected_[i]])) return false;
  }
  for (int i = 0; i < kMaxRows; ++i) {
    if (selected[i] || !slots_[i].live()) continue;
    if (slots_[i].is_cancelled() || can_take_part(slots_[i])) return false;
  }
  return !draft_pays();
}

// Whether the row takes part in the step after those under way, as far as can be known now.
bool DecodeService::goes_on(Row& row) {
  if (!row.live() || row.is_cancelled() || row.n_stale > 0) return false;
  if (row.masked || row.mask_need != MaskNeed::kNone) return false;
  ask_for_pages(row);
  prepare_draft(row);
  return row.position + n_under_way_ < row.page_capacity() &&
         row.n_generated + n_under_way_ < row.max_tokens;
}

// The batch under way, one token further.
void DecodeService::load_ahead() {
  for (int i = 0; i < n_selected_; ++i) {
    batch_[i].token = kTokenOfLastStep;
    batch_[i].position = slots_[selected_[i]].position + n_under_way_;
  }
}

bool DecodeService::ring_has_space() {
  if (ring_.free_places() >= 2 * kMaxRows) return true;
  waits_for_space_.store(true, std::memory_order_relaxed);
  // Pairs with the fence in records_taken(): either we see the freed places or the reader sees that
  // we wait.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (ring_.free_places() < 2 * kMaxRows) return false;
  waits_for_space_.store(false, std::memory_order_relaxed);
  return true;
}

// Fills selected_; returns how many rows ended because they were cancelled.
int DecodeService::select_rows() {
  int n_ended = 0;
  n_selected_ = 0;
  for (int i = 0; i < kMaxRows; ++i) {
    Row& row = slots_[i];
    if (!row.live()) continue;
    if (row.is_cancelled()) {
      end_row(row, RowEnd::kCancelled);
      ++n_ended;
    } else if (can_take_part(row)) {
      selected_[n_selected_++] = i;
    }
  }
  return n_ended;
}

bool DecodeService::can_take_part(Row& row) {
  ask_for_pages(row);
  if (row.position >= row.page_capacity()) return false;
  prepare_draft(row);
  return row.mask_need == MaskNeed::kNone || answer_arrived(row);
}

bool DecodeService::answer_arrived(Row& row) {
  if (row.mask_need == MaskNeed::kToAsk) ask_for_mask(row);
  // acquire pairs with the release in answer().
  const int32_t n_masks = row.answer.load(std::memory_order_acquire);
  if (n_masks < 0) return false;
  row.masked = n_masks > 0;
  if (row.masked) row.draft.n = std::min(row.draft.n, n_masks - 1);
  row.mask_need = MaskNeed::kNone;
  return true;
}

// One entry a row, followed by those of its draft.
void DecodeService::load_batch() {
  n_tried_ = planned_drafts();
  const auto n_rows = static_cast<std::ptrdiff_t>(n_selected_);
  const bool same_rows = !batch_dirty_ && n_selected_ == n_loaded_ &&
                         std::equal(loaded_.begin(), loaded_.begin() + n_rows, selected_.begin());
  const bool same = same_rows && loaded_tried_ == n_tried_;
  if (!same)
    batch_.resize(static_cast<size_t>(
        std::accumulate(n_tried_.begin(), n_tried_.begin() + n_rows, n_selected_)));
  size_t n = 0;
  for (int i = 0; i < n_selected_; ++i)
    for (int j = 0; j <= n_tried_[i]; ++j, ++n) load_entry(batch_[n], selected_[i], j, same);
  if (same) return;
  if (same_rows)
    backend_->regroup(batch_);
  else
    backend_->set_batch(batch_);
  loaded_ = selected_, loaded_tried_ = n_tried_, n_loaded_ = n_selected_;
  batch_dirty_ = false;
}

// The entry of a row's next token (j == 0) or of token j of its draft.
void DecodeService::load_entry(BatchRow& entry, int slot, int j, bool same) {
  Row& row = slots_[static_cast<size_t>(slot)];
  entry.token = j == 0 ? row.token : row.draft.tokens[static_cast<size_t>(j - 1)];
  entry.position = row.position + j;
  entry.token_mask = row.masked ? row.masks[static_cast<size_t>(j)].data() : nullptr;
  if (same) return;
  entry.request = row.request.load(std::memory_order_relaxed);
  for (int g = 0; g < 2; ++g) {
    entry.pages[g] = row.pages[g].data();
    entry.n_pages[g] = static_cast<int32_t>(row.pages[g].size());
  }
  entry.sampling = &row.sampling;
  entry.history = &row.history;
}

// The row's next token, and those after it for as long as the draft was right. An unmasked token
// after which the grammar must be asked ends the run.
void DecodeService::take_results(Row& row, const RowResult* results, int n_tried) {
  const Draft draft = row.has_draft ? row.draft : Draft{};
  int n_kept = 0;
  bool watched = false;
  while (true) {
    take_result(row, results[n_kept]);
    watched = row.grammar && !row.masked && bit_is_set(row.watch, row.token);
    if (row.end != RowEnd::kRunning || watched || n_kept == n_tried) break;
    if (row.token != draft.tokens[static_cast<size_t>(n_kept)]) break;
    ++n_kept;
  }
  if (n_tried > 0) {
    row.acceptance.observe(draft.match, n_tried, n_kept);
    drafted_.fetch_add(static_cast<uint64_t>(n_tried), std::memory_order_relaxed);
    accepted_.fetch_add(static_cast<uint64_t>(n_kept), std::memory_order_relaxed);
  } else if (draft.n > 0) {
    row.acceptance.observe(draft.match, 1, row.token == draft.tokens[0]);
  }
  row.has_draft = false;
  if (row.end != RowEnd::kRunning || !row.grammar || !(row.masked || watched)) return;
  ask_for_mask(row);
  row.n_stale = n_under_way_;
  batch_dirty_ = batch_dirty_ || n_under_way_ > 0;  // the device has gone on without us
}

void DecodeService::take_result(Row& row, const RowResult& result) {
  if (result.status == RowStatus::kNan) {
    push(row, nullptr, kEndNan);
    return end_row(row, RowEnd::kNan);
  }
  row.position += 1;
  row.n_generated += 1;
  row.token = result.token;
  row.history.push_back(result.token);
  if (std::find(row.stop_ids.begin(), row.stop_ids.end(), result.token) != row.stop_ids.end()) {
    push(row, nullptr, kEndStop);
    return end_row(row, RowEnd::kStop);
  }
  if (row.n_generated >= row.max_tokens) {
    push(row, &result, kTokenValid | kEndLength);
    return end_row(row, RowEnd::kLength);
  }
  push(row, &result, kTokenValid);
}

void DecodeService::ask_for_mask(Row& row) {
  prepare_draft(row);
  row.answer.store(-1, std::memory_order_relaxed);
  row.asked.store(row.n_generated, std::memory_order_release);
  std::lock_guard lock(mutex_);
  const bool full =
      queries_.size() >= kMaxQueries;  // the mask thread is behind: try again at the next step
  row.mask_need = full ? MaskNeed::kToAsk : MaskNeed::kAsked;
  if (full) return;
  MaskQuery query{row.request.load(std::memory_order_relaxed),
                  row.n_generated,
                  std::min(row.n_generated, kMaxRecent),
                  {},
                  row.draft.n,
                  row.draft.tokens};
  std::copy(row.history.end() - query.n_recent, row.history.end(), query.recent);
  queries_.push_back(query);
  masks_cv_.notify_one();
}

void DecodeService::push(const Row& row, const RowResult* result, int32_t flags) {
  TokenRecord& record = ring_.next();
  record.request = row.request.load(std::memory_order_relaxed);
  record.token = result == nullptr ? 0 : result->token;
  record.flags = flags;
  record.n_logprobs =
      result == nullptr
          ? 0
          : static_cast<int32_t>(std::min<size_t>(result->logprobs.size(), kMaxLogprobs));
  for (int i = 0; i < record.n_logprobs; ++i) {
    record.logprob_ids[i] = result->logprobs[i].first;
    record.logprob_values[i] = result->logprobs[i].second;
  }
  ring_.publish();
}

void DecodeService::ask_for_pages(Row& row) {
  const int32_t capacity = row.page_capacity();
  const int32_t wanted = row.position + (row.max_tokens - row.n_generated);
  if (row.pages_asked || wanted <= capacity || row.position + kPageTokens / 2 < capacity) return;
  row.pages_asked = true;
  post(kNoticePages);
}

void DecodeService::end_row(Row& row, RowEnd end) {
  row.end = end;
  post(kNoticeEnded);
}

void DecodeService::fail_all(const char* what) {
  {
    std::lock_guard lock(mutex_);
    error_ = what;
  }
  for (Row& row : slots_) {
    if (!row.live()) continue;
    push(row, nullptr, kEndBackend);
    end_row(row, RowEnd::kBackend);
  }
  backend_ = nullptr;
  n_under_way_ = 0;
  eventfd_write(event_fd_, 1);
  post(kNoticeFailed);
}

}  // namespace pointcode
