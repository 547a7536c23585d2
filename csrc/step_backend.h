// What the decode service needs of a backend: take a batch, run steps, hand out the chosen tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "task.h"

namespace pointcode {

struct SamplingConfig {  // same meaning as engine.types.SamplingParams
  float temperature = 0.f, top_p = 1.f, min_p = 0.f;
  float repetition_penalty = 1.f, frequency_penalty = 0.f, presence_penalty = 0.f;
  int32_t top_k = 0, n_logprobs = 0;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
};

// As BatchRow::token: the one that the step before chooses, which the host has not seen yet.
constexpr int32_t kTokenOfLastStep = -1;
constexpr int kMaxUnderWay = 2;  // steps launched and not collected

// One live sequence. Page tables map logical page i to a physical page, per KV group (0 full, 1
// sliding); they are owned by the service, written only while it is parked, and cover position
// `position`.
struct BatchRow {
  int64_t request = 0;
  int32_t token = 0;     // fed by the next step
  int32_t position = 0;  // its position = tokens already in the cache
  const int32_t* pages[2] = {nullptr, nullptr};
  int32_t n_pages[2] = {0, 0};
  const SamplingConfig* sampling = nullptr;
  const uint32_t* token_mask = nullptr;  // (vocab / 32) bits of allowed tokens, or nullptr
  std::vector<int32_t>* history =
      nullptr;  // prompt and output ids, for penalties; the service appends
};

enum class RowStatus : int32_t { kOk = 0, kNan = 1 };

struct RowResult {
  int32_t token = 0;
  RowStatus status = RowStatus::kOk;
  std::vector<std::pair<int32_t, float>> logprobs;  // reused between steps; empty unless asked for
};

class StepBackend {
 public:
  virtual ~StepBackend() = default;
  // Called after rows changed, while no step is under way; `rows` stays valid and in place until the
  // next call.
  virtual void set_batch(const std::vector<BatchRow>& rows) = 0;
  // The same sequences in the same order as in the last set_batch(), each perhaps with another number
  // of consecutive rows; nothing else has changed.
  virtual void regroup(const std::vector<BatchRow>& rows) { set_batch(rows); }
  // Runs one step for all rows (row i reads rows[i].token at rows[i].position and writes
  // results[i]). The service then updates token and position. Throws std::runtime_error with a
  // message that names the fault (a barrier time-out names processor, task, counter, seen, wanted);
  // after a throw the backend must be rebuilt.
  virtual void step(const std::vector<BatchRow>& rows, std::vector<RowResult>& results) = 0;

  // The same in two halves: launch() starts a step, collect() waits for the oldest one that was
  // launched. A backend that runs ahead takes up to kMaxUnderWay steps: the second one goes on from
  // the first with the same rows, every token kTokenOfLastStep, every position one further, no masks.
  // `rows` of the others must stay as they are until collect().
  virtual bool runs_ahead() const { return false; }
  virtual void launch(const std::vector<BatchRow>& rows) { launched_ = &rows; }
  virtual void collect(std::vector<RowResult>& results) { step(*launched_, results); }

  // Whether rows of one step may be consecutive tokens of one sequence: each sees the keys of those
  // before it. Needed to try drafts.
  virtual bool takes_consecutive_rows() const { return false; }
  // What another row adds to a step, in steps of one row, as far as that is known before steps of
  // several rows have been timed.
  virtual double row_cost() const { return 0.15; }
  virtual std::string name() const = 0;

 private:
  const std::vector<BatchRow>* launched_ = nullptr;
};

}  // namespace pointcode
