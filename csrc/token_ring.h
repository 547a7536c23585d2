// A bounded lock-free queue from the decode thread (the only producer) to the event loop (one
// consumer at a time).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pointcode {

constexpr int kMaxLogprobs = 21;  // 20 alternatives and the chosen token

enum TokenFlag : int32_t {
  kTokenValid = 1 << 0,  // `token` is part of the output
  kEndStop = 1 << 1,     // a stop id was chosen (it is not emitted)
  kEndLength = 1 << 2,   // max_tokens reached
  kEndNan = 1 << 3,      // this row's logits were not numbers
  kEndBackend = 1 << 4,  // the backend failed; DecodeService::error() says how
};

struct TokenRecord {
  int64_t request;
  int32_t token;
  int32_t flags;
  int32_t n_logprobs;
  int32_t logprob_ids[kMaxLogprobs];
  float logprob_values[kMaxLogprobs];
};

class TokenRing {
 public:
  explicit TokenRing(size_t capacity)
      : slots_(round_up_to_power_of_two(capacity)), mask_(slots_.size() - 1) {}

  size_t capacity() const { return slots_.size(); }

  // Producer: places that can be written now (may grow at any time).
  size_t free_places() const {
    // acquire pairs with the release in pop(): a freed slot's last read is done.
    return slots_.size() -
           (head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_acquire));
  }

  // Producer: the next slot to fill; the caller has checked free_places() and calls publish()
  // afterwards.
  TokenRecord& next() { return slots_[head_.load(std::memory_order_relaxed) & mask_]; }

  // Producer: makes the slot visible; release pairs with the acquire in front().
  void publish() {
    head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // Consumer: the oldest record, or nullptr.
  const TokenRecord* front() const {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    return tail == head_.load(std::memory_order_acquire) ? nullptr : &slots_[tail & mask_];
  }

  // Consumer: gives the slot of front() back.
  void pop() { tail_.store(tail_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

 private:
  static size_t round_up_to_power_of_two(size_t n) {
    size_t size = 16;
    while (size < n) size *= 2;
    return size;
  }

  std::vector<TokenRecord> slots_;
  size_t mask_;
  alignas(64) std::atomic<size_t> head_{0};
  alignas(64) std::atomic<size_t> tail_{0};
};

}  // namespace pointcode
