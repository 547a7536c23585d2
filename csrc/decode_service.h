// The decode thread: owns the step loop, never touches Python, never logs.
//
// Ownership is handed over by park()/resume(). While the service is *parked* the control thread may
// change rows, pages and the backend; while it runs, only the decode thread does. With no live row
// it parks itself.
//
// On a backend that runs ahead the next step is launched before the results of the one under way have
// come (decode_loop.cc); parking waits until none is under way.
//
//   shared item          writer           reader     order
//   rows (plain part)    owner            owner      mutex_ in park()/resume()
//   Row::request         control, parked  any        exchange_mutex_; decode thread: parked hand-over
//   Row::cancelled       any (cancel)     decode     relaxed: seen at the next step
//   Row::masks, answer   mask thread      decode     release store of `answer`, acquire load; only
//                                                    while `asked` names the query
//   ring                 decode           event loop TokenRing
//   notices, queries     decode           control, masks  mutex_
//   shared               any              decode     relaxed: seen at the next step; signalled when it ends
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "draft.h"
#include "step_backend.h"
#include "token_ring.h"

namespace pointcode {

enum class RowEnd : int32_t { kRunning = 0, kStop, kLength, kCancelled, kNan, kBackend };

enum Notice : int32_t {
  kNoticeEnded = 1 << 0,   // a row ended: take its pages back
  kNoticePages = 1 << 1,   // a row is about to need pages
  kNoticeFailed = 1 << 2,  // the backend threw and must be rebuilt
  kNoticeWoken = 1 << 3,   // wake() was called
};

struct RowSpec {
  int64_t request = 0;           // positive and unique
  std::vector<int32_t> history;  // prompt ids; the last one is fed by the first step
  int32_t max_tokens = 1;        // new tokens
  std::vector<int32_t> stop_ids;
  SamplingConfig sampling;
  std::vector<int32_t> pages[2];
  bool grammar = false;         // Python is asked about tokens (see `watch`)
  bool masked = false;          // `mask` holds for the first token
  std::vector<uint32_t> mask;   // (ceil(vocab / 32))
  std::vector<uint32_t> watch;  // ids after which Python is asked while the row is unmasked
};

struct RowView {  // what the control thread needs to know of a row while parked
  int64_t request;
  RowEnd end;
  int32_t position;  // tokens in the cache
  int32_t n_generated;
  int32_t n_pages;
};

constexpr size_t kMaxQueries = 64;
constexpr int kMaxRecent = 32;

struct MaskQuery {  // "the output of this request ends with `recent`: what may follow, and what
                    // after each token of the draft?"
  int64_t request;
  int32_t n_generated;
  int32_t n_recent;
  int32_t recent[kMaxRecent];  // the last output tokens, the newest last
  int32_t n_draft;
  std::array<int32_t, kMaxDraft> draft;
};

class DecodeService {
 public:
  explicit DecodeService(size_t ring_capacity);
  ~DecodeService();
  DecodeService(const DecodeService&) = delete;
  DecodeService& operator=(const DecodeService&) = delete;

  // ---- control thread
  bool park(
      double timeout_s);  // false: the running step did not end in time; parking stays requested
  void resume();
  void close();  // joins the thread; idempotent

  // The following need the service parked and throw std::logic_error otherwise.
  void set_backend(StepBackend* backend);  // not owned
  void set_drafts(bool enabled);           // tries prompt-lookup drafts where the backend can
  void set_run_ahead(bool enabled);  // launches steps ahead where the backend can; on at first
  void add_row(RowSpec spec);        // throws std::invalid_argument when kMaxRows are taken
  void set_pages(int64_t request, int group, std::vector<int32_t> pages);
  std::vector<RowView> rows() const;
  std::vector<int32_t> remove_row(int64_t request);  // returns the history

  int32_t wait_notices(double timeout_s);  // returns and clears the set bits; 0 on time-out
  void wake();

  // ---- any thread
  // While somebody else computes on the device of a backend that runs ahead (a prompt): no step is
  // launched ahead, and after each one the device is left alone for as long as it took. Work of a
  // lower priority would not run at all between steps that are always there.
  void set_shared(bool shared);
  bool cancel(int64_t request);  // false: no such row
  std::string error() const;     // of the last backend failure
  uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }
  uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }
  uint64_t drafted() const { return drafted_.load(std::memory_order_relaxed); }    // tokens tried
  uint64_t accepted() const { return accepted_.load(std::memory_order_relaxed); }  // and kept
  int event_fd() const { return event_fd_; }

  // ---- mask thread
  std::vector<MaskQuery> wait_queries(double timeout_s);
  // What may follow token number `n_generated` and then the first, second, ... token of the query's
  // draft. No masks: anything. Ignored when the row is gone or has not asked.
  void answer(int64_t request, int32_t n_generated,
              const std::vector<std::vector<uint32_t>>& masks);
  void wake_masks();

  // ---- event loop (one caller at a time)
  TokenRing& ring() { return ring_; }
  void records_taken();  // lets a service that waits for ring space go on

 private:
  enum class MaskNeed { kNone, kToAsk, kAsked };

  struct Row {
    std::atomic<int64_t> request{0};  // 0: slot is free
    std::atomic<int64_t> cancelled{0};
    RowEnd end = RowEnd::kRunning;
    int32_t token = 0, position = 0, n_generated = 0, max_tokens = 0;
    bool pages_asked = false;
    std::vector<int32_t> stop_ids, history, pages[2];
    SamplingConfig sampling;
    bool grammar = false, masked = false;
    MaskNeed mask_need = MaskNeed::kNone;
    std::array<std::vector<uint32_t>, kMaxRows> masks;  // after 0, 1, ... tokens of the draft
    std::vector<uint32_t> watch;
    std::atomic<int32_t> asked{-1};   // n_generated of the query that is open, else -1
    std::atomic<int32_t> answer{-1};  // number of masks that came for it; -1: none yet
    int n_stale = 0;                  // results of steps under way that do not count
    bool has_draft = false;           // looked up since the last token
    Draft draft;
    Acceptance acceptance;

    bool live() const {
      return request.load(std::memory_order_relaxed) != 0 && end == RowEnd::kRunning;
    }
    bool is_cancelled() const {
      return cancelled.load(std::memory_order_relaxed) == request.load(std::memory_order_relaxed);
    }
    int32_t page_capacity() const;  // tokens that the pages can hold
  };

  void run();
  void wait_while_parked();
  void wait_for_signal(uint64_t seen);
  bool step_once();  // false: nothing could run
  bool ring_has_space();
  int select_rows();
  bool can_take_part(Row& row);
  bool answer_arrived(Row& row);
  bool may_run_ahead();
  bool goes_on(Row& row);
  void load_batch();
  void load_ahead();
  void launch();
  void observe_step();
  void finish_steps();
  void give_way();
  void load_entry(BatchRow& entry, int slot, int j, bool same);
  void prepare_draft(Row& row);
  bool draft_pays() const;
  std::array<int, kMaxRows> planned_drafts() const;
  void take_results(Row& row, const RowResult* results, int n_tried);
  void take_result(Row& row, const RowResult& result);
  void ask_for_pages(Row& row);
  void ask_for_mask(Row& row);
  void push(const Row& row, const RowResult* result, int32_t flags);
  void end_row(Row& row, RowEnd end);
  void fail_all(const char* what);
  bool any_live() const;
  void post(int32_t notice);
  void signal();
  void require_parked() const;
  Row* find(int64_t request);

  std::array<Row, kMaxRows> slots_;
  StepBackend* backend_ = nullptr;
  std::vector<BatchRow> batch_;
  std::vector<RowResult> results_;
  std::array<int, kMaxRows> selected_{}, n_tried_{};  // slots that take part, draft tokens of each
  std::array<int, kMaxRows> loaded_{}, loaded_tried_{};  // the same of what batch_ holds
  int n_loaded_ = 0;
  int n_selected_ = 0, n_under_way_ = 0;  // the steps under way have the same rows
  bool batch_dirty_ = true, drafts_ = false, run_ahead_ = true;
  // When the step before ended, or a wait did: the oldest step under way is timed from here.
  std::chrono::steady_clock::time_point begun_;
  std::chrono::steady_clock::duration last_step_{};
  DraftPlanner planner_;

  TokenRing ring_;
  int event_fd_ = -1;

  mutable std::mutex mutex_;
  std::mutex exchange_mutex_;  // slot identity between control, cancel and mask threads; never
                               // taken by the decode thread
  std::condition_variable decode_cv_, control_cv_, masks_cv_;
  bool parked_ = false;             // under mutex_
  int32_t notices_ = 0;             // under mutex_
  bool masks_woken_ = false;        // under mutex_
  std::vector<MaskQuery> queries_;  // under mutex_; capacity kMaxQueries is never exceeded
  std::string error_;               // under mutex_
  std::atomic<bool> stop_{false}, park_requested_{false}, waits_for_space_{false}, shared_{false};
  std::atomic<uint64_t> signals_{0}, steps_{0}, busy_ns_{0}, drafted_{0}, accepted_{0};
  std::thread thread_;
};

}  // namespace pointcode
