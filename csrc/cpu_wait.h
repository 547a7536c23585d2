// How the CPU backend's processors wait for each other: a short spin, then sleep until woken.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace pointcode {

// A counter or a claim queue alone in its cache lines. `sleepers`: who went to sleep on the value.
struct alignas(128) PaddedCounter {
  std::atomic<int32_t> value{0};
  std::atomic<int32_t> sleepers{0};
};

// One processor's waits: a short spin, then yields, which cost least while the core is its own or
// shared with little else. When the thread is kept from its core for most of the time, the wait goes
// to sleep instead: who sleeps is put before the others when it is woken, who yields has to wait for
// its next slice (milliseconds) each time.
class alignas(128) Pace {
 public:
  // Waits until the counter is `wanted` or more; false when it is time to sleep.
  bool spin(const PaddedCounter& counter, int32_t wanted) const;

  // Sleeps while the counter is `seen`, at most for `limit`; may return early.
  static void sleep(PaddedCounter& counter, int32_t seen, std::chrono::nanoseconds limit);

  // At the end of a step: looks, now and then, how long this thread was kept from its core.
  void end_step();

 private:
  std::chrono::nanoseconds looked_{0}, kept_off_{0};
  bool crowded_ = false;
};

void pause_briefly();

// Adds one and wakes who sleeps on the counter. Release: pairs with the acquire of who waits.
void add_one(PaddedCounter& counter);

}  // namespace pointcode
