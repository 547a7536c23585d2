// A CUDA device on one OS thread, for tests: enough of it to run csrc/megakernel*.cu as they are.
//
// Every CUDA thread is a fiber; all blocks of a launch are live at once (as a cooperative launch
// promises). A seeded random scheduler picks the next warp and lane; fibers change hands only in the
// calls declared here, and at random inside loads and stores of shared data. Warp collectives wait for
// all lanes that have not ended, and fail when lanes meet in different places. Bulk copies complete
// late and in any order; until then, and before anything is written, shared memory holds NaNs. What
// this cannot show: missing fences (memory here is sequentially consistent) and speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>

namespace host_cuda {

constexpr int kWarpLanes = 32;
constexpr int kSlotBytes = 48;  // what one lane gives to a collective: an mma's fragments

struct Dim {
  uint32_t x = 1, y = 1, z = 1;
};

// ---- the calling fiber
const Dim& thread_index();
const Dim& block_index();
int lane();
uint8_t* shared_memory();
[[noreturn]] void end_thread();
// Lets others run; the fiber stays ready.
void maybe_yield();
// Parks the fiber until something else has happened; used by spins.
void pause_in_spin();
void sync_block();
// The calling thread's registers from now on. More are there when other threads of the block have given as many back.
void set_registers(int n);
struct NamedBarrier {
  int arrived = 0, turn = 0;  // threads of this turn
};
NamedBarrier& named_barrier(int id);  // of the block

// ---- warp collectives: all lanes bring `bytes` of input; the last one to arrive calls `finish` (if
// any) on the inputs of the 32 lanes. Returns those inputs, valid until the lane's next collective.
using Finish = void (*)(uint8_t (*slots)[kSlotBytes], uint32_t alive);
uint8_t (*meet(const void* input, size_t bytes, Finish finish,
               std::source_location place))[kSlotBytes];

// ---- mbarriers and bulk copies
void barrier_init(uint64_t* bar, int count);
void barrier_arrive(uint64_t* bar, uint32_t expected_bytes);
bool barrier_test(const uint64_t* bar, uint32_t parity);
bool barrier_wait(const uint64_t* bar, uint32_t parity);  // parks once when the phase is not over
void copy_async(void* dst, const void* src, uint32_t bytes, uint64_t* bar, bool poison = true);
// Copies out of shared memory that the calling fiber has begun; they read what they store when they land.
void store_async(void* dst, const void* src, uint32_t bytes);
void wait_for_stores();

// ---- clusters: blocks in a row; ranks count from the first one
int cluster_rank();
void sync_cluster();
// The same place in the shared memory of another block of the cluster.
void* in_block_of(const void* place, int rank);
void arrive_in_cluster(uint64_t* bar, int rank);
void copy_to_cluster(void* dst, const void* src, uint32_t bytes, uint64_t* bar, uint32_t mask);

// ---- launch
using Entry = void (*)(const void* context);
int run_grid(Entry entry, const void* context, Dim grid, Dim block, size_t shared_bytes,
             uint32_t cluster = 1);
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace host_cuda

// For the tests: what decides the order of everything, and what went wrong in the last launch.
extern "C" void host_cuda_seed(uint64_t seed);
extern "C" const char* host_cuda_error();
extern "C" uint64_t host_cuda_switches();
