// The step backend that drives the decode megakernel: buffers, schedules, sampling, bounded waits.
#pragma once

#if POINTCODE_CUDA
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device_buffer.h"
#include "gpu_sampler.h"
#include "mk_params.h"
#include "model_shape.h"
#include "step_backend.h"

namespace pointcode {

// The task lists of one number of rows; SM p runs tasks[offsets[p]] .. tasks[offsets[p + 1] - 1].
struct MegakernelSchedule {
  std::vector<TaskDescriptor> tasks;
  std::vector<int32_t> offsets;
  int32_t n_splits = 1, n_queues = 0;
  int32_t n_counters = 0;  // 0: the lean order, which hands over without counters
  std::vector<std::string> wave_names;
};

struct MegakernelConfig {
  std::vector<mk::Layer> layers;  // device addresses of packed weights and KV pages
  const float* final_norm = nullptr;
  const uint8_t* lm_head = nullptr;
  const uint8_t* embed = nullptr;
  std::vector<MegakernelSchedule> schedules;  // [n_rows - 1]
  int32_t max_pages = 0;                      // logical pages of the longest sequence
  int32_t wait_limit_ms = 10000;              // bound of the host's wait for a step
  int32_t in_flight_bytes =
      48 << 10;                  // of the ring per SM: more only makes small loads queue behind it
  uint32_t spin_limit = 300000;  // bound of every wait on the GPU, in turns of 1 to 20 us
};

// Not thread-safe. Everything it launches goes to its own stream: per step the kernel and the sampler,
// which leaves tokens and positions for the next step on the device. Staging memory is written only
// while nothing is under way.
class MegakernelBackend final : public StepBackend {
 public:
  MegakernelBackend(const ModelShape& model, MegakernelConfig config);
  ~MegakernelBackend() override;
  MegakernelBackend(const MegakernelBackend&) = delete;
  MegakernelBackend& operator=(const MegakernelBackend&) = delete;

  void set_batch(const std::vector<BatchRow>& rows) override;
  void regroup(const std::vector<BatchRow>& rows) override;
  void step(const std::vector<BatchRow>& rows, std::vector<RowResult>& results) override;
  bool runs_ahead() const override { return true; }
  void launch(const std::vector<BatchRow>& rows) override;
  void collect(std::vector<RowResult>& results) override;
  bool takes_consecutive_rows() const override { return true; }
  double row_cost() const override { return 0.45; }  // most experts of a row are its own
  std::string name() const override { return "megakernel"; }

  // Milliseconds of a step's kernel alone: the mean of these steps, (steps, rows) tokens and positions,
  // launched back to back without a sampler or a wait between them. `rows` are those of the first
  // step, as a new batch; those of the others have the same pages and the same chains.
  float time_kernels(std::vector<BatchRow> rows, std::span<const int32_t> tokens,
                     std::span<const int32_t> positions);
  // For tests and tools: the last step's logits of row r, `vocab` values.
  std::vector<float> logits(int row) const;
  // The router's logits of the last routed layer of the last step, (8, n_experts).
  std::vector<float> router_logits() const;
  // Time stamps (SM, slot) that a build with POINTCODE_MK_TRACE writes during the next steps;
  // nullptr: none.
  void set_trace(uint64_t* trace, int32_t slots) {
    params_.trace = trace, params_.trace_slots = slots;
  }
  // Pretends that `step` steps have run, to test the wrap of the tag.
  void set_step(uint32_t step);
  // Limits the GPU's bounded waits; 0 makes the first long one expire.
  void set_in_flight(int32_t bytes) { params_.in_flight_bytes = bytes; }
  void set_spin_limit(uint32_t turns) { params_.spin_limit = turns; }
  int n_sms() const { return n_sms_; }

 private:
  struct Lists {  // a schedule on the device
    DeviceBuffer<TaskDescriptor> tasks;
    DeviceBuffer<int32_t> offsets;
  };

  struct Launched {  // a step under way
    uint32_t stamp = 0;
    int n_rows = 0;
  };

  void fill_model(const ModelShape& model);
  void upload_layers();
  void upload_schedules();
  void allocate_activations();
  int find_chains(const std::vector<BatchRow>& rows);
  bool follows(const BatchRow& row, const BatchRow& before) const;
  void set_draws(size_t n_rows);
  void upload_pages(const std::vector<BatchRow>& rows);
  void feed(const std::vector<BatchRow>& rows);
  void check_rows(const std::vector<BatchRow>& rows) const;
  void expect_next(const std::vector<BatchRow>& rows) const;
  std::vector<int32_t> stage_steps(std::vector<BatchRow>& rows, std::span<const int32_t> tokens,
                                   std::span<const int32_t> positions) const;
  cudaError_t launch_kernel(int n_rows, const int32_t* fed);
  void require(cudaError_t launched);
  void advance_tag();
  GpuSampler::Answer wait_for(uint32_t stamp, int row);
  [[noreturn]] void report_abort(int n_rows);
  [[noreturn]] void fail_for_good(const std::string& message);

  MegakernelConfig config_;
  int n_sms_ = 0;
  int32_t vocab_ = 0, max_splits_ = 1;
  int n_sequences_ = 0;  // of the batch
  std::array<bool, 2> group_used_{};
  mk::Params params_{};
  std::string failure_;  // not empty: rebuild the backend

  Stream stream_;
  DeviceBuffer<mk::Layer> layers_;
  std::vector<Lists> lists_;
  DeviceBuffer<uint8_t> activations_;  // all tagged buffers
  DeviceBuffer<float> logits_;
  DeviceBuffer<Leader> leaders_;
  DeviceBuffer<int32_t> pages_, tokens_;  // tokens_: (2, 8) tokens, positions
  DeviceBuffer<uint32_t> abort_, queues_, counters_;
  std::unique_ptr<GpuSampler> sampler_;
  PinnedBuffer<int32_t> host_pages_, host_tokens_;
  PinnedBuffer<mk::Mailbox> mailbox_;
  // What the device holds when the steps under way have ended; their tokens are not known yet.
  std::array<int32_t, kMaxRows> device_token_{}, device_position_{};
  std::array<Launched, kMaxUnderWay> under_way_{};  // the oldest first
  int n_under_way_ = 0;
  bool masked_ = false;  // the last step had a mask
};

}  // namespace pointcode
#endif
