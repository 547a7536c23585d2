#include "cpu_backend.h"

#include <algorithm>
#include <utility>

#include "check.h"

namespace pointcode {
namespace {

constexpr int kIdleSpins = 2000;  // pauses before an idle worker goes to sleep (about 80 us)
// Longest sleep of a waiting processor before it looks whether another one has failed.
constexpr std::chrono::milliseconds kLongestSleep{5};
// Longest time between two looks that counts as waiting: a process that was stopped did not wait.
constexpr std::chrono::milliseconds kLongestLook{100};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int count_processors(const std::vector<Schedule>& schedules) {
  size_t n = 0;
  for (const Schedule& schedule : schedules) {
    CHECK_THAT(schedule.empty() || n == 0 || schedule.lists.size() == n, "schedules are for ", n,
               " and ", schedule.lists.size(), " processors");
    n = std::max(n, schedule.lists.size());
  }
  return static_cast<int>(std::max<size_t>(n, 1));
}

int32_t most_splits(const CpuBackendConfig& config) {
  int32_t n = config.max_splits;
  for (const Schedule& schedule : config.schedules) {
    for (const auto& list : schedule.lists) {
      for (const TaskDescriptor& task : list) {
        if (task.opcode != static_cast<int32_t>(Opcode::kMoeCombine))
          n = std::max(n, task.n_splits);
      }
    }
  }
  return n;
}

void grow(std::vector<PaddedCounter>& counters, int32_t n) {
  if (counters.size() < static_cast<size_t>(n))
    counters = std::vector<PaddedCounter>(static_cast<size_t>(n));
}

void zero(std::vector<PaddedCounter>& counters) {
  for (PaddedCounter& counter : counters) counter.value.store(0, std::memory_order_relaxed);
}

}  // namespace

CpuBackend::CpuBackend(ModelShape model, CpuBackendConfig config)
    : model_(std::move(model)),
      config_(std::move(config)),
      n_processors_(count_processors(config_.schedules)),
      buffers_(model_, most_splits(config_)),
      context_(model_, dot_table(config_.isa), buffers_),
      scratch_(static_cast<size_t>(n_processors_)),
      stamps_(static_cast<size_t>(n_processors_)),
      paces_(static_cast<size_t>(n_processors_)),
      sampler_(model_.vocab) {
  CHECK_THAT(config_.caches.size() == static_cast<size_t>(model_.n_layers), "KV pages of ",
             config_.caches.size(), " layers came for ", model_.n_layers);
  CHECK_THAT(config_.kv_format == WeightFormat::kF32 || config_.kv_format == WeightFormat::kF16 ||
                 config_.kv_format == WeightFormat::kBf16,
             "KV pages are F32, F16 or BF16");
  context_.caches = config_.caches;
  context_.kv_format = config_.kv_format;
  for (const Schedule& schedule : config_.schedules) validate(schedule);
  for (int p = 1; p < n_processors_; ++p) workers_.emplace_back([this, p] { worker_loop(p); });
}

CpuBackend::~CpuBackend() {
  stopping_.store(true, std::memory_order_relaxed);  // published by generation_
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void CpuBackend::validate(const Schedule& schedule) const {
  for (const auto& list : schedule.lists) {
    for (const TaskDescriptor& task : list) {
      validate_task(context_, task, schedule.n_queues);
      CHECK_THAT(task.signal >= kNone && task.signal < schedule.n_counters,
                 opcode_name(task.opcode), ": counter ", task.signal, " is none of ",
                 schedule.n_counters);
      for (const int32_t counter : task.wait_counter) {
        CHECK_THAT(counter >= kNone && counter < schedule.n_counters, opcode_name(task.opcode),
                   ": counter ", counter, " is none of ", schedule.n_counters);
      }
    }
  }
}

void CpuBackend::set_batch(const std::vector<BatchRow>& rows) {
  CHECK_THAT(rows.size() <= config_.schedules.size() &&
                 (rows.empty() || !config_.schedules[rows.size() - 1].empty()),
             "no schedule for ", rows.size(), " rows");
}

void CpuBackend::step(const std::vector<BatchRow>& rows, std::vector<RowResult>& results) {
  run_forward(rows);
  results.resize(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    sampler_.sample(buffers_.logits.data() + r * static_cast<size_t>(model_.vocab), rows[r],
                    results[r]);
  }
}

void CpuBackend::run_forward(const std::vector<BatchRow>& rows) {
  set_batch(rows);
  if (rows.empty()) return;
  context_.rows = &rows;
  embed_rows(context_);
  execute(rows, config_.schedules[rows.size() - 1]);
}

void CpuBackend::run_lists(const std::vector<BatchRow>& rows, const Schedule& schedule) {
  CHECK_THAT(schedule.lists.size() == static_cast<size_t>(n_processors_), "lists for ",
             schedule.lists.size(), " processors, the backend has ", n_processors_);
  validate(schedule);
  context_.rows = &rows;
  execute(rows, schedule);
}

void CpuBackend::execute(const std::vector<BatchRow>& rows, const Schedule& schedule) {
  CHECK_THAT(!failed_.load(std::memory_order_acquire),
             "the backend has failed and must be rebuilt: ", failure_);
  check_pages(rows);
  zero(counters_[set_]);
  zero(queues_[set_]);
  set_ ^= 1;
  grow(counters_[set_], schedule.n_counters);
  grow(queues_[set_], schedule.n_queues);
  context_.queues = queues_[set_].data();
  schedule_ = &schedule;
  set_rotations(context_);
  ++n_steps_;
  finished_.value.store(0, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  run_list(0);
  wait_for_workers();
  if (failed_.load(std::memory_order_acquire)) fail(failure_);
}

// Not bounded itself: what the workers wait for is.
void CpuBackend::wait_for_workers() {
  const int32_t wanted = n_processors_ - 1;
  if (wanted == 0 || paces_[0].spin(finished_, wanted)) return;
  int32_t seen;
  while ((seen = finished_.value.load(std::memory_order_acquire)) < wanted)
    Pace::sleep(finished_, seen, kLongestSleep);
}

// Every KV group that the model has must have a page for the row's position.
void CpuBackend::check_pages(const std::vector<BatchRow>& rows) const {
  for (int group = 0; group < 2; ++group) {
    const bool used =
        std::any_of(model_.layers.begin(), model_.layers.end(),
                    [group](const LayerShape& layer) { return layer.sliding == (group == 1); });
    for (const BatchRow& row : rows) {
      CHECK_THAT(
          !used || (row.pages[group] != nullptr && row.position / kPageTokens < row.n_pages[group]),
          "request ", row.request, " has ", row.n_pages[group], " pages of KV group ", group,
          " and stands at position ", row.position);
    }
  }
}

void CpuBackend::worker_loop(int processor) {
  uint32_t seen = 0;
  while (true) {
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < kIdleSpins) {
        pause_briefly();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;
    if (stopping_.load(std::memory_order_relaxed)) return;
    run_list(processor);
    add_one(finished_);
  }
}

void CpuBackend::run_list(int processor) {
  WorkerScratch& scratch = scratch_[static_cast<size_t>(processor)];
  const bool records = n_steps_ <= recorded_until_;
  TaskStamp stamp{};
  try {
    for (const TaskDescriptor& task : schedule_->lists[static_cast<size_t>(processor)]) {
      if (config_.delay_seed != 0) delay(task);
      if (records) stamp.taken = now_ns();
      for (int i = 0; i < kMaxWaits; ++i) {
        if (!wait_for(task, processor, i)) return;
      }
      if (records) stamp.begun = now_ns();
      run_task(context_, task, scratch);
      if (records) record(processor, task, stamp);
      if (config_.delay_seed != 0) delay(task);
      if (task.signal == kNone) continue;
      add_one(counters_[set_][static_cast<size_t>(task.signal)]);
    }
  } catch (const std::exception& error) {
    record_failure(join_text("processor ", processor, ": ", error.what()));
  }
  paces_[static_cast<size_t>(processor)].end_step();
}

void CpuBackend::record_steps(uint64_t n) {
  for (auto& stamps : stamps_) stamps.clear();
  recorded_until_ = n_steps_ + n;
}

void CpuBackend::record(int processor, const TaskDescriptor& task, TaskStamp stamp) {
  stamp.step = static_cast<int64_t>(n_steps_), stamp.ended = now_ns();
  stamp.ordinal = task.ordinal, stamp.opcode = task.opcode, stamp.layer = task.layer;
  stamp.tile_begin = task.tile_begin, stamp.tile_count = task.tile_count;
  stamps_[static_cast<size_t>(processor)].push_back(stamp);
}

// True when the counter has reached its target; false when another processor failed. Throws when
// the time is up.
bool CpuBackend::wait_for(const TaskDescriptor& task, int processor, int wait) {
  if (task.wait_counter[wait] == kNone) return true;
  PaddedCounter& counter = counters_[set_][static_cast<size_t>(task.wait_counter[wait])];
  const int32_t wanted = task.wait_target[wait];
  if (counter.value.load(std::memory_order_acquire) >= wanted) return true;
  if (paces_[static_cast<size_t>(processor)].spin(counter, wanted)) return true;
  const auto limit = std::chrono::milliseconds(config_.wait_limit_ms);
  auto looked = std::chrono::steady_clock::now();
  std::chrono::nanoseconds waited{0};
  int32_t seen;
  while ((seen = counter.value.load(std::memory_order_acquire)) < wanted) {
    if (failed_.load(std::memory_order_acquire)) return false;
    Pace::sleep(counter, seen, kLongestSleep);
    const auto now = std::chrono::steady_clock::now();
    waited += std::min<std::chrono::nanoseconds>(now - looked, kLongestLook);
    looked = now;
    if (waited < limit) continue;
    seen = counter.value.load(std::memory_order_acquire);
    record_failure(join_text("barrier time-out after ", config_.wait_limit_ms, " ms: processor ",
                             processor, ", task ", task.ordinal, " (", opcode_name(task.opcode),
                             ", layer ", task.layer, "), counter ", task.wait_counter[wait],
                             ": seen ", seen, ", wanted ", wanted));
    return false;
  }
  return true;
}

// Up to about 60 us, different for every (seed, step, task) and for each of its two calls.
void CpuBackend::delay(const TaskDescriptor& task) const {
  static thread_local uint64_t calls = 0;
  const uint64_t random = mix64(mix64(config_.delay_seed + n_steps_) ^
                                mix64(static_cast<uint64_t>(task.ordinal) << 20 ^ ++calls));
  if (random >> 62 == 0) std::this_thread::yield();
  for (uint64_t i = random % 1500; i > 0; --i) pause_briefly();
}

void CpuBackend::record_failure(const std::string& message) {
  const std::lock_guard lock(failure_mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  failure_ = message;
  failed_.store(true, std::memory_order_release);
}

}  // namespace pointcode
