#include "cpu_wait.h"

#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <thread>

#if defined(__linux__)
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pointcode {
namespace {

using std::chrono::nanoseconds;

constexpr int kSpins = 300;  // pauses (about 10 us)
constexpr std::chrono::milliseconds kYieldFor{2};
constexpr int kYieldsPerClock = 16;
// How often a thread looks for how much of the time it was kept from its core: above the first share
// (of 100) the core is crowded, below the second no longer. The system counts this; a host that takes
// a virtual core away, which no sleep can help, does not count.
constexpr std::chrono::milliseconds kBetweenLooks{20};
constexpr int kCrowded = 70, kNotCrowded = 15;

nanoseconds clock_now() { return std::chrono::steady_clock::now().time_since_epoch(); }

// How long this thread has been ready to run without a core, since it began; 0 where nobody counts.
nanoseconds kept_off_core() {
  int64_t ns = 0;
#if defined(__linux__)
  const int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return nanoseconds(0);
  char text[64] = {};
  if (read(file, text, sizeof text - 1) > 0) std::sscanf(text, "%*s %" SCNd64, &ns);
  close(file);
#endif
  return nanoseconds(ns);
}

#if defined(__linux__)
static_assert(sizeof(std::atomic<int32_t>) == sizeof(int32_t), "a futex is a plain 32-bit word");

void futex(std::atomic<int32_t>& word, int operation, int32_t value, const timespec* limit) {
  syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}
#endif

}  // namespace

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

void Pace::end_step() {
  const nanoseconds now = clock_now();
  const nanoseconds passed = now - looked_;
  if (passed < kBetweenLooks) return;
  const nanoseconds kept_off = kept_off_core();
  crowded_ = (kept_off - kept_off_) * 100 > passed * (crowded_ ? kNotCrowded : kCrowded);
  looked_ = now;
  kept_off_ = kept_off;
}

bool Pace::spin(const PaddedCounter& counter, int32_t wanted) const {
  for (int i = 0; i < kSpins; ++i) {
    if (counter.value.load(std::memory_order_acquire) >= wanted) return true;
    pause_briefly();
  }
  if (crowded_) return false;
  const nanoseconds begun = clock_now();
  do {
    for (int i = 0; i < kYieldsPerClock; ++i) {
      std::this_thread::yield();
      if (counter.value.load(std::memory_order_acquire) >= wanted) return true;
    }
  } while (clock_now() - begun < kYieldFor);
  return false;
}

#if defined(__linux__)
// seq_cst in both: either the sleeper is counted before the adder looks, or the kernel, which compares
// the value after the sleeper was counted, finds the sum and does not let it sleep.
void Pace::sleep(PaddedCounter& counter, int32_t seen, nanoseconds limit) {
  const timespec most{static_cast<time_t>(limit.count() / 1'000'000'000),
                      static_cast<long>(limit.count() % 1'000'000'000)};
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  futex(counter.value, FUTEX_WAIT_PRIVATE, seen, &most);
  counter.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void add_one(PaddedCounter& counter) {
  counter.value.fetch_add(1, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) > 0)
    futex(counter.value, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr);
}
#else
void Pace::sleep(PaddedCounter&, int32_t, nanoseconds) { std::this_thread::yield(); }

void add_one(PaddedCounter& counter) { counter.value.fetch_add(1, std::memory_order_release); }
#endif

}  // namespace pointcode
