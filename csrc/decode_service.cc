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

std::chrono::duration<double> seconds(double s) {
  return std::chrono::duration<double>(std::clamp(s, 0.0, 3600.0));
}

}  // namespace

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

// ------------------------------ control side
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
  planner_ = {};
  if (backend != nullptr) planner_.assume(backend->row_cost());
}

void DecodeService::set_drafts(bool enabled) {
  require_parked();
  drafts_ = enabled;
}

void DecodeService::set_run_ahead(bool enabled) {
  require_parked();
  run_ahead_ = enabled;
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
  row->masks[0] = std::move(spec.mask);
  row->watch = std::move(spec.watch);
  row->asked.store(-1, std::memory_order_relaxed);
  row->answer.store(-1, std::memory_order_relaxed);
  row->n_stale = 0;
  row->has_draft = false;
  row->acceptance = {};
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

void DecodeService::set_shared(bool shared) {
  shared_.store(shared, std::memory_order_relaxed);
  if (!shared) signal();
}

std::string DecodeService::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

// ------------------------------ masks
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
                           const std::vector<std::vector<uint32_t>>& masks) {
  {
    std::lock_guard exchange(exchange_mutex_);
    Row* row = request == 0 ? nullptr : find(request);
    int32_t asked = n_generated;
    if (row == nullptr || !row->asked.compare_exchange_strong(asked, -1)) return;
    const size_t n = std::min(masks.size(), row->masks.size());
    std::copy_n(masks.begin(), n, row->masks.begin());
    // release: the words of the masks are visible before the decode thread sees how many there are.
    row->answer.store(static_cast<int32_t>(n), std::memory_order_release);
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
