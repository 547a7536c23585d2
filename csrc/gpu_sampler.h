// Host side of sampling on the GPU: masks and penalties in device memory; answers in pinned memory.
#pragma once

#if POINTCODE_CUDA
#include <span>
#include <vector>

#include "device_buffer.h"
#include "sample.h"
#include "step_backend.h"

namespace pointcode {

// Launches of one step are numbered; answers of the last kAnswers of them are kept.
//
// Not thread-safe. `logits` (8, vocab), `tokens` and `positions` (8) are device memory of the owner; `leaders` too,
// (rows, n_leaders) of these logits, or none.
class GpuSampler {
 public:
  GpuSampler(int32_t vocab, const float* logits, int32_t* tokens, int32_t* positions,
             const uint32_t* abort_flag, cudaStream_t stream, const Leader* leaders = nullptr,
             int32_t n_leaders = 0);

  static constexpr uint32_t kAnswers = 4;
  static_assert(kAnswers > kMaxUnderWay && (gpu::kStampMask + 1) % kAnswers == 0);

  // After rows changed; everything launched before has ended. Row r belongs to sequence
  // sequences[r]; rows of one follow each other.
  void set_batch(const std::vector<BatchRow>& rows, std::span<const int32_t> sequences);
  // The same sequences with other numbers of rows.
  void regroup(const std::vector<BatchRow>& rows, std::span<const int32_t> sequences);
  // How whoever makes the leaders finds the row's.
  RowDraw draw_of(int row) const;
  // Before each step: positions, and masks, which may come only when everything launched before has
  // ended.
  void prepare(const std::vector<BatchRow>& rows);
  // Behind the logits on the stream. cudaSuccess, or why it could not be launched.
  cudaError_t launch();
  uint32_t stamp() const { return params_.stamp; }  // of the last launch

  struct Answer {
    bool arrived;
    gpu::SampleStatus status;
    int32_t token;
  };
  // The row's answer to that launch, if it has arrived.
  Answer poll(uint32_t stamp, int row) const;
  void read_logprobs(uint32_t stamp, int row, RowResult& result) const;

 private:
  gpu::SampleResult& answer(uint32_t stamp, int row) const {
    return results_[stamp % kAnswers * kMaxRows + static_cast<size_t>(row)];
  }
  void upload_history(size_t sequence, const BatchRow& entry);

  int32_t vocab_;
  cudaStream_t stream_;
  gpu::SampleParams params_{};
  DeviceBuffer<float> bias_;  // made when a request first needs it
  DeviceBuffer<int32_t> counts_;
  DeviceBuffer<uint32_t> masks_;
  PinnedBuffer<uint32_t> host_masks_;
  PinnedBuffer<gpu::SampleResult> results_;  // (kAnswers, kMaxRows)
  std::vector<int32_t> scratch_counts_;
  std::vector<float> scratch_bias_;
};

}  // namespace pointcode
#endif
