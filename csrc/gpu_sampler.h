// Host side of sampling on the GPU: parameters, masks, penalties in device memory; answers in pinned memory.
#pragma once

#if POINTCODE_CUDA
#include <vector>

#include "device_buffer.h"
#include "sample.h"
#include "step_backend.h"

namespace pointcode {

// Not thread-safe. `logits` (8, vocab), `tokens` and `positions` (8) are device memory of the owner.
class GpuSampler {
 public:
  GpuSampler(int32_t vocab, const float* logits, int32_t* tokens, int32_t* positions,
             const uint32_t* abort_flag, cudaStream_t stream);

  // After rows changed; everything launched before has ended.
  void set_batch(const std::vector<BatchRow>& rows);
  // Before each step: masks may change from step to step.
  void prepare(const std::vector<BatchRow>& rows);
  // Behind the logits on the stream. cudaSuccess, or why it could not be launched.
  cudaError_t launch(int n_rows);

  struct Answer {
    bool arrived;
    gpu::SampleStatus status;
    int32_t token;
  };
  // The row's answer to the last launch, if it has arrived.
  Answer poll(int row) const;
  void read_logprobs(int row, RowResult& result) const;

 private:
  void upload_rows();
  void upload_history(size_t row, const BatchRow& entry);

  int32_t vocab_;
  cudaStream_t stream_;
  gpu::SampleParams params_{};
  DeviceBuffer<float> bias_;  // made when a request first needs it
  DeviceBuffer<int32_t> counts_;
  DeviceBuffer<uint32_t> masks_;
  DeviceBuffer<gpu::SampleRow> rows_;
  PinnedBuffer<uint32_t> host_masks_;
  PinnedBuffer<gpu::SampleRow> host_rows_;
  PinnedBuffer<gpu::SampleResult> results_;
  std::vector<int32_t> scratch_counts_;
  std::vector<float> scratch_bias_;
};

}  // namespace pointcode
#endif
