// A backend that runs ahead over one that does not: a launched step is computed when it is collected, as
// by a device that is behind, from the tokens that the steps before it chose. To test what runs ahead.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "step_backend.h"

namespace pointcode {

class DeferredBackend final : public StepBackend {
 public:
  explicit DeferredBackend(StepBackend& inner) : inner_(inner) {}

  void set_batch(const std::vector<BatchRow>& rows) override {
    CHECK_THAT(under_way_.empty(), "the batch changes while ", under_way_.size(),
               " steps are under way");
    chosen_.clear();
    sequences_ = sequences_of(rows);
    inner_.set_batch(rows);
  }
  void regroup(const std::vector<BatchRow>& rows) override {
    CHECK_THAT(under_way_.empty(), "rows are regrouped while ", under_way_.size(),
               " steps are under way");
    CHECK_THAT(sequences_of(rows) == sequences_, "rows of other sequences came for a batch");
    chosen_.clear();
    inner_.regroup(rows);
  }
  void step(const std::vector<BatchRow>& rows, std::vector<RowResult>& results) override {
    launch(rows);
    collect(results);
  }

  bool runs_ahead() const override { return true; }
  void launch(const std::vector<BatchRow>& rows) override {
    CHECK_THAT(under_way_.size() < kMaxUnderWay, under_way_.size(), " steps are under way");
    for (size_t r = 0; r < rows.size(); ++r) {
      const bool goes_on = rows[r].token == kTokenOfLastStep;
      CHECK_THAT(goes_on == !under_way_.empty(), "row ", r, " is fed with token ", rows[r].token,
                 " while ", under_way_.size(), " steps are under way");
      if (!goes_on) continue;
      CHECK_THAT(under_way_.back().size() == rows.size() &&
                     under_way_.back()[r].position + 1 == rows[r].position &&
                     under_way_.back()[r].token_mask == nullptr && rows[r].token_mask == nullptr,
                 "row ", r, " does not go on from the step before");
      CHECK_THAT(r == 0 || rows[r].request != rows[r - 1].request, "row ", r,
                 " goes on from a draft");
      n_ahead_ += r == 0;
    }
    under_way_.push_back(rows);
  }
  void collect(std::vector<RowResult>& results) override {
    CHECK_THAT(!under_way_.empty(), "no step is under way");
    std::vector<BatchRow> rows = std::move(under_way_.front());
    under_way_.pop_front();
    for (size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].token == kTokenOfLastStep) rows[r].token = chosen_[r];
    }
    inner_.step(rows, results);
    chosen_.clear();
    for (size_t r = 0; r < rows.size(); ++r) chosen_.push_back(results[r].token);
  }

  bool takes_consecutive_rows() const override { return inner_.takes_consecutive_rows(); }
  double row_cost() const override { return inner_.row_cost(); }
  std::string name() const override { return "deferred " + inner_.name(); }

  size_t n_under_way() const { return under_way_.size(); }
  uint64_t n_ahead() const { return n_ahead_; }  // steps launched while one was under way

 private:
  // (request, its full pages) of every sequence.
  static std::vector<std::pair<int64_t, const int32_t*>> sequences_of(
      const std::vector<BatchRow>& rows) {
    std::vector<std::pair<int64_t, const int32_t*>> found;
    for (const BatchRow& row : rows) {
      const std::pair<int64_t, const int32_t*> sequence(row.request, row.pages[0]);
      if (found.empty() || found.back() != sequence) found.push_back(sequence);
    }
    return found;
  }

  StepBackend& inner_;
  std::deque<std::vector<BatchRow>> under_way_;
  std::vector<int32_t> chosen_;                                // by the last collected step
  std::vector<std::pair<int64_t, const int32_t*>> sequences_;  // of the batch
  uint64_t n_ahead_ = 0;
};

}  // namespace pointcode
