#include "gpu_sampler.h"

#if POINTCODE_CUDA
#include <algorithm>
#include <atomic>

namespace pointcode {
namespace {

size_t mask_words(int32_t vocab) { return (static_cast<size_t>(vocab) + 31) / 32; }

bool has_penalties(const SamplingConfig& c) {
  return c.repetition_penalty != 1.f || c.frequency_penalty != 0.f || c.presence_penalty != 0.f;
}

}  // namespace

GpuSampler::GpuSampler(int32_t vocab, const float* logits, int32_t* tokens, int32_t* positions,
                       const uint32_t* abort_flag, cudaStream_t stream, const Leader* leaders,
                       int32_t n_leaders)
    : vocab_(vocab),
      stream_(stream),
      masks_(kMaxRows * mask_words(vocab)),
      host_masks_(kMaxRows * mask_words(vocab)),
      results_(kAnswers * kMaxRows) {
  static_assert(gpu::kMaxSampleRows == kMaxRows);
  CHECK_THAT(vocab <= gpu::kMaxSampleVocab, "the vocabulary of ", vocab, " exceeds ",
             gpu::kMaxSampleVocab);
  CHECK_THAT(pointcode_sample_params_size() == sizeof(gpu::SampleParams),
             "sample.h differs between host and device");
  params_.vocab = vocab, params_.logits = logits;
  params_.leaders = leaders, params_.n_leaders = n_leaders;
  params_.masks = masks_.data(), params_.mask_words = static_cast<int32_t>(mask_words(vocab));
  params_.tokens = tokens, params_.positions = positions;
  params_.abort_flag = abort_flag;
}

void GpuSampler::set_batch(const std::vector<BatchRow>& rows, std::span<const int32_t> sequences) {
  regroup(rows, sequences);
  for (size_t r = 0; r < rows.size(); ++r) {
    const gpu::SampleRow& row = params_.rows[r];
    if (r > 0 && row.sequence == params_.rows[r - 1].sequence) continue;
    if (row.has_bias || row.has_penalties)
      upload_history(static_cast<size_t>(row.sequence), rows[r]);
  }
}

void GpuSampler::regroup(const std::vector<BatchRow>& rows, std::span<const int32_t> sequences) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const SamplingConfig& c = *rows[r].sampling;
    gpu::SampleRow& row = params_.rows[r];
    row = {};
    row.temperature = c.temperature, row.top_p = c.top_p, row.min_p = c.min_p;
    row.repetition_penalty = c.repetition_penalty;
    row.frequency_penalty = c.frequency_penalty, row.presence_penalty = c.presence_penalty;
    row.top_k = c.top_k, row.n_logprobs = std::min(c.n_logprobs, gpu::kSampleLogprobs - 1);
    row.has_bias = !c.logit_bias.empty(), row.has_penalties = has_penalties(c);
    row.seed = c.seed, row.sequence = sequences[r];
  }
}

RowDraw GpuSampler::draw_of(int row) const {
  const gpu::SampleRow& r = params_.rows[row];
  const bool draws = r.draws_from_all(vocab_);
  return {r.seed, draws ? 1.f / r.temperature : 1.f, draws};
}

// Dense vectors of the vocabulary's size: few requests have them, so they are copied at leisure.
void GpuSampler::upload_history(size_t sequence, const BatchRow& entry) {
  const auto vocab = static_cast<size_t>(vocab_), at = vocab * sequence;
  if (bias_.size() == 0) {
    bias_ = DeviceBuffer<float>(vocab * kMaxRows);
    counts_ = DeviceBuffer<int32_t>(vocab * kMaxRows);
    params_.bias = bias_.data(), params_.counts = counts_.data();
  }
  scratch_bias_.assign(vocab, 0.f);
  for (const auto& [token, value] : entry.sampling->logit_bias) {
    if (token >= 0 && token < vocab_) scratch_bias_[static_cast<size_t>(token)] += value;
  }
  scratch_counts_.assign(vocab, 0);
  if (entry.history != nullptr) {
    for (const int32_t token : *entry.history) {
      if (token >= 0 && token < vocab_) ++scratch_counts_[static_cast<size_t>(token)];
    }
  }
  check_cuda(cudaMemcpyAsync(bias_.data() + at, scratch_bias_.data(), vocab * 4,
                             cudaMemcpyHostToDevice, stream_),
             "uploading biases");
  check_cuda(cudaMemcpyAsync(counts_.data() + at, scratch_counts_.data(), vocab * 4,
                             cudaMemcpyHostToDevice, stream_),
             "uploading counts");
  check_cuda(cudaStreamSynchronize(stream_), "uploading penalties");  // the vectors are used again
}

void GpuSampler::prepare(const std::vector<BatchRow>& rows) {
  const size_t words = mask_words(vocab_);
  params_.n_rows = static_cast<int32_t>(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    params_.rows[r].position = rows[r].position;
    params_.rows[r].has_mask = rows[r].token_mask != nullptr;
    if (rows[r].token_mask == nullptr) continue;
    uint32_t* staged = host_masks_.data() + r * words;
    std::copy_n(rows[r].token_mask, words, staged);
    check_cuda(cudaMemcpyAsync(masks_.data() + r * words, staged, words * 4, cudaMemcpyHostToDevice,
                               stream_),
               "uploading a mask");
  }
}

cudaError_t GpuSampler::launch() {
  params_.stamp = (params_.stamp + 1) & gpu::kStampMask;
  params_.results = &answer(params_.stamp, 0);
  return static_cast<cudaError_t>(pointcode_sample(&params_, stream_));
}

GpuSampler::Answer GpuSampler::poll(uint32_t stamp, int row) const {
  const volatile uint64_t* word = &answer(stamp, row).word;
  const uint64_t seen = *word;
  if (seen >> 34 != stamp) return {false, gpu::SampleStatus::kOk, 0};
  std::atomic_thread_fence(std::memory_order_acquire);  // log-probabilities come before the word
  return {true, static_cast<gpu::SampleStatus>(seen >> 32 & 3),
          static_cast<int32_t>(seen & 0xffffffffu)};
}

void GpuSampler::read_logprobs(uint32_t stamp, int row, RowResult& result) const {
  result.logprobs.clear();
  if (params_.rows[row].n_logprobs == 0 || result.status != RowStatus::kOk) return;
  const gpu::SampleResult& found = answer(stamp, row);
  for (int i = 0; i < found.n_logprobs; ++i) {
    result.logprobs.emplace_back(found.ids[i], found.values[i]);
  }
}

}  // namespace pointcode
#endif
