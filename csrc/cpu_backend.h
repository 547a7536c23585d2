// The CPU backend: worker threads that run the same task lists and counters as the megakernel.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cpu_ops.h"
#include "sampling.h"
#include "step_backend.h"

namespace pointcode {

// Task lists for one number of rows: lists[p] is what processor p runs, in order.
struct Schedule {
  std::vector<std::vector<TaskDescriptor>> lists;
  int32_t n_counters = 0, n_queues = 0;
  bool empty() const { return lists.empty(); }
};

struct CpuBackendConfig {
  std::vector<LayerCache> caches;  // per layer
  WeightFormat kv_format = WeightFormat::kF32;
  std::vector<Schedule> schedules;  // [n_rows - 1]; empty where that many rows cannot run
  int32_t wait_limit_ms = 4000;     // bound of every wait, time in which all was stopped left out
  uint64_t delay_seed = 0;          // not 0: tasks are delayed at random, to provoke races
  Isa isa = Isa::kPortable;
  int32_t max_splits =
      1;  // attention splits that the buffers must hold, at least those of the schedules
};

// When a processor took up a task, had waited for it, and ended it; ns of the steady clock.
struct TaskStamp {
  int64_t step, taken, begun, ended;
  int32_t ordinal, opcode, layer, tile_begin, tile_count, reserved;
};

// Processor 0 is the thread that calls `step`; the others are threads owned by the backend, asleep
// between steps.
//
// Sync sites          producer                 consumer                order, reset
//   counters_[set][i] task's end, +1           task's waits            release/acquire, zeroed by the caller a step later
//   queues_[set][i]   claim, +1                the claimers            relaxed, zeroed by the caller a step later
//   generation_       caller, +1               idle workers            release/acquire, never reset
//   finished_         worker, +1               caller                  release/acquire, zeroed by the caller before generation_
//   failed_           first failing processor  every wait              never reset: rebuild the backend
// counters_ and finished_ wake who sleeps on them (cpu_wait.h); failed_ is looked at every 5 ms.
class CpuBackend final : public StepBackend {
 public:
  CpuBackend(ModelShape model, CpuBackendConfig config);
  ~CpuBackend() override;
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  void set_batch(const std::vector<BatchRow>& rows) override;
  void step(const std::vector<BatchRow>& rows, std::vector<RowResult>& results) override;
  bool takes_consecutive_rows() const override { return true; }  // a wave writes all keys first
  std::string name() const override { return "cpu"; }

  // For tests: runs the lists alone (no embeddings, no sampling) on the rows.
  void run_lists(const std::vector<BatchRow>& rows, const Schedule& schedule);
  // Embeddings and lists, no sampling: `buffers().logits` holds the result.
  void run_forward(const std::vector<BatchRow>& rows);

  // Stamps every task of the next `n` steps; what was recorded before is dropped. Between steps only.
  void record_steps(uint64_t n);
  const std::vector<std::vector<TaskStamp>>& stamps() const { return stamps_; }  // by processor

  StepBuffers& buffers() { return buffers_; }
  const ModelShape& model() const { return model_; }
  const DotTable& kernels() const { return *context_.kernels; }
  int n_processors() const { return n_processors_; }

 private:
  void validate(const Schedule& schedule) const;
  void check_pages(const std::vector<BatchRow>& rows) const;
  void execute(const std::vector<BatchRow>& rows, const Schedule& schedule);
  void worker_loop(int processor);
  void run_list(int processor);
  void wait_for_workers();
  bool wait_for(const TaskDescriptor& task, int processor, int wait);
  void delay(const TaskDescriptor& task) const;
  void record(int processor, const TaskDescriptor& task, TaskStamp stamp);
  void record_failure(const std::string& message);

  ModelShape model_;
  CpuBackendConfig config_;
  int n_processors_ = 1;
  StepBuffers buffers_;
  StepContext context_;
  std::vector<WorkerScratch> scratch_;
  std::vector<std::vector<TaskStamp>> stamps_;
  std::vector<Pace> paces_;
  Sampler sampler_;

  std::vector<PaddedCounter> counters_[2], queues_[2];
  int set_ = 0;
  uint64_t n_steps_ = 0, recorded_until_ = 0;
  const Schedule* schedule_ = nullptr;

  std::atomic<uint32_t> generation_{0};
  PaddedCounter finished_;
  std::atomic<bool> stopping_{false}, failed_{false};
  std::mutex failure_mutex_;
  std::string failure_;
  std::vector<std::thread> workers_;
};

}  // namespace pointcode
