#include "decode_service.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace pointcode {
namespace {

constexpr size_t kMaxQueries = 64;
// Wake-ups are signalled; the bound only limits the damage of a lost one.
constexpr auto kIdleWait = std::chrono::milliseconds(500);

std::chrono::duration<double> seconds(double s) {
  return std::chrono::duration<double>(std::clamp(s, 0.0, 3600.0));
}

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

DecodeService::DecodeService(size_t ring_capacity) : ring_(ring_capacity) {
  batch_.reserve(kMaxRows);
  results_.resize(kMaxRows);
  queries_.reserve(kMaxQueries);
  event_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = std::thread([this] { run(); });
}

DecodeService::~DecodeService() {
  close();
  ::close(event_fd_);
}

// ------------------------------------------------------------------------------------------------
// control side
bool DecodeService::park(double timeout_s) {
  park_requested_.store(true, std::memory_order_release);
  signal();
  std::unique_lock lock(mutex_);
  return control_cv_.wait_for(lock, seconds(timeout_s), [this] { return parked_; });
}

void DecodeService::resume() {
  {
    std::lock_guard lock(mutex_);
    park_requested_.store(false, std::memory_order_release);
    parked_ = false;
    batch_dirty_ = true;
  }
  decode_cv_.notify_all();
}

void DecodeService::close() {
  stop_.store(true, std::memory_order_release);
  signal();
  wake_masks();
  if (thread_.joinable()) thread_.join();
}

void DecodeService::require_parked() const {
  std::lock_guard lock(mutex_);
  if (!parked_)
    throw std::logic_error("the decode service is running; park it before changing the batch");
}

void DecodeService::set_backend(StepBackend* backend) {
  require_parked();
  backend_ = backend;
}

void DecodeService::add_row(RowSpec spec) {
  require_parked();
  if (spec.history.empty()) throw std::invalid_argument("a row needs at least one token");
  std::lock_guard exchange(exchange_mutex_);
  Row* row = find(0);
  if (row == nullptr) throw std::invalid_argument("all rows of the batch are taken");
  row->end = RowEnd::kRunning;
  row->token = spec.history.back();
  row->position = static_cast<int32_t>(spec.history.size()) - 1;
  row->n_generated = 0;
  row->max_tokens = spec.max_tokens;
  row->pages_asked = false;
  row->stop_ids = std::move(spec.stop_ids);
  row->history = std::move(spec.history);
  row->history.reserve(row->history.size() + std::min(spec.max_tokens, 8192));
  row->sampling = std::move(spec.sampling);
  for (int g = 0; g < 2; ++g) row->pages[g] = std::move(spec.pages[g]);
  row->grammar = spec.grammar;
  row->mask_need = MaskNeed::kNone;
  row->masked = spec.masked;
  row->mask_index = 0;
  row->masks[0] = std::move(spec.mask);
  row->masks[1].assign(row->masks[0].size(), 0);
  row->watch = std::move(spec.watch);
  row->answer.store(-1, std::memory_order_relaxed);
  row->cancelled.store(0, std::memory_order_relaxed);
  row->request.store(spec.request, std::memory_order_relaxed);
}

void DecodeService::set_pages(int64_t request, int group, std::vector<int32_t> pages) {
  require_parked();
  Row* row = find(request);
  if (row == nullptr || group < 0 || group > 1)
    throw std::invalid_argument("no such row or KV group");
  row->pages[group] = std::move(pages);
  row->pages_asked = false;
}

std::vector<RowView> DecodeService::rows() const {
  require_parked();
  std::vector<RowView> views;
  for (const Row& row : slots_) {
    const int64_t request = row.request.load(std::memory_order_relaxed);
    if (request == 0) continue;
    views.push_back(
        {request, row.end, row.position, row.n_generated, row.page_capacity() / kPageTokens});
  }
  return views;
}

std::vector<int32_t> DecodeService::remove_row(int64_t request) {
  require_parked();
  std::lock_guard exchange(exchange_mutex_);
  Row* row = find(request);
  if (row == nullptr || request == 0) throw std::invalid_argument("no such row");
  row->request.store(0, std::memory_order_relaxed);
  return std::move(row->history);
}

int32_t DecodeService::wait_notices(double timeout_s) {
  std::unique_lock lock(mutex_);
  control_cv_.wait_for(lock, seconds(timeout_s), [this] { return notices_ != 0; });
  return std::exchange(notices_, 0);
}

void DecodeService::wake() { post(kNoticeWoken); }

bool DecodeService::cancel(int64_t request) {
  {
    std::lock_guard exchange(exchange_mutex_);
    Row* row = request == 0 ? nullptr : find(request);
    if (row == nullptr) return false;
    row->cancelled.store(request, std::memory_order_relaxed);
  }
  signal();
  return true;
}

std::string DecodeService::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

// ------------------------------------------------------------------------------------------------
// masks
std::vector<MaskQuery> DecodeService::wait_queries(double timeout_s) {
  std::unique_lock lock(mutex_);
  masks_cv_.wait_for(lock, seconds(timeout_s),
                     [this] { return !queries_.empty() || masks_woken_; });
  masks_woken_ = false;
  std::vector<MaskQuery> taken(queries_);
  queries_.clear();
  return taken;
}

void DecodeService::answer(int64_t request, int32_t n_generated,
                           const std::vector<uint32_t>& mask) {
  {
    std::lock_guard exchange(exchange_mutex_);
    Row* row = request == 0 ? nullptr : find(request);
    if (row == nullptr) return;
    row->masks[n_generated & 1] = mask;
    // release: the mask's words are visible before the decode thread sees the number.
    row->answer.store(int64_t{n_generated} * 2 + (mask.empty() ? 0 : 1), std::memory_order_release);
  }
  signal();
}

void DecodeService::wake_masks() {
  {
    std::lock_guard lock(mutex_);
    masks_woken_ = true;
  }
  masks_cv_.notify_all();
}

void DecodeService::records_taken() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (waits_for_space_.exchange(false, std::memory_order_relaxed)) signal();
}

// ------------------------------------------------------------------------------------------------
// decode thread
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

bool DecodeService::any_live() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Row& row) { return row.live(); });
}

void DecodeService::post(int32_t notice) {
  {
    std::lock_guard lock(mutex_);
    notices_ |= notice;
  }
  control_cv_.notify_all();
}

void DecodeService::signal() {
  {
    std::lock_guard lock(mutex_);
    signals_.fetch_add(1, std::memory_order_release);
  }
  decode_cv_.notify_all();
}

DecodeService::Row* DecodeService::find(int64_t request) {
  for (Row& row : slots_) {
    if (row.request.load(std::memory_order_relaxed) == request) return &row;
  }
  return nullptr;
}

}  // namespace pointcode
