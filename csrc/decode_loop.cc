// The decode thread's side of DecodeService: everything here runs on that thread.
#include <sys/eventfd.h>

#include <algorithm>
#include <stdexcept>

#include "decode_service.h"

namespace pointcode {
namespace {

// Wake-ups are signalled; the bound only limits the damage of a lost one.
constexpr auto kIdleWait = std::chrono::milliseconds(500);

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
    if (park_requested_.load(std::memory_order_acquire) || backend_ == nullptr || !any_live()) {
      wait_while_parked();
      continue;
    }
    const uint64_t seen = signals_.load(std::memory_order_acquire);
    if (!step_once()) wait_for_signal(seen);
  }
}

void DecodeService::wait_while_parked() {
  std::unique_lock lock(mutex_);
  parked_ = true;
  control_cv_.notify_all();
  while (parked_ && !stop_.load(std::memory_order_relaxed)) decode_cv_.wait_for(lock, kIdleWait);
}

void DecodeService::wait_for_signal(uint64_t seen) {
  std::unique_lock lock(mutex_);
  decode_cv_.wait_for(lock, kIdleWait,
                      [&] { return signals_.load(std::memory_order_relaxed) != seen; });
}

bool DecodeService::step_once() {
  // One record per row for this step and one per row in case the backend fails.
  if (!ring_has_space()) return false;
  const bool ended_some = select_rows() > 0;
  if (n_selected_ == 0) return ended_some;
  const auto start = std::chrono::steady_clock::now();
  try {
    load_batch();
    backend_->step(batch_, results_);
  } catch (const std::exception& failure) {
    fail_all(failure.what());
    return true;
  }
  const auto elapsed = std::chrono::steady_clock::now() - start;
  busy_ns_.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count(),
                     std::memory_order_relaxed);
  steps_.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; i < n_selected_; ++i) take_result(slots_[selected_[i]], results_[i]);
  eventfd_write(event_fd_, 1);
  return true;
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
    if (row.cancelled.load(std::memory_order_relaxed) ==
        row.request.load(std::memory_order_relaxed)) {
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
  return row.mask_need == MaskNeed::kNone || answer_arrived(row);
}

bool DecodeService::answer_arrived(Row& row) {
  if (row.mask_need == MaskNeed::kToAsk) ask_for_mask(row);
  // acquire pairs with the release in answer().
  const int64_t answer = row.answer.load(std::memory_order_acquire);
  if (answer < 0 || answer / 2 != row.n_generated) return false;
  row.mask_index = row.n_generated & 1;
  row.masked = (answer & 1) != 0;
  row.mask_need = MaskNeed::kNone;
  return true;
}

void DecodeService::load_batch() {
  const bool same = n_selected_ == n_loaded_ && !batch_dirty_ &&
                    std::equal(selected_.begin(), selected_.begin() + n_selected_, loaded_.begin());
  if (!same) batch_.resize(n_selected_);
  for (int i = 0; i < n_selected_; ++i) {
    Row& row = slots_[selected_[i]];
    BatchRow& entry = batch_[i];
    entry.token = row.token;
    entry.position = row.position;
    entry.token_mask = row.masked ? row.masks[row.mask_index].data() : nullptr;
    if (same) continue;
    entry.request = row.request.load(std::memory_order_relaxed);
    for (int g = 0; g < 2; ++g) {
      entry.pages[g] = row.pages[g].data();
      entry.n_pages[g] = static_cast<int32_t>(row.pages[g].size());
    }
    entry.sampling = &row.sampling;
    entry.history = &row.history;
  }
  if (same) return;
  backend_->set_batch(batch_);
  loaded_ = selected_;
  n_loaded_ = n_selected_;
  batch_dirty_ = false;
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
  if (row.grammar && (row.masked || bit_is_set(row.watch, result.token))) ask_for_mask(row);
}

void DecodeService::ask_for_mask(Row& row) {
  std::lock_guard lock(mutex_);
  const bool full =
      queries_.size() >= kMaxQueries;  // the mask thread is behind: try again at the next step
  row.mask_need = full ? MaskNeed::kToAsk : MaskNeed::kAsked;
  if (full) return;
  MaskQuery query{row.request.load(std::memory_order_relaxed),
                  row.n_generated,
                  std::min(row.n_generated, kMaxRecent),
                  {}};
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
  eventfd_write(event_fd_, 1);
  post(kNoticeFailed);
}

}  // namespace pointcode
