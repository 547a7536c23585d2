// What a block does before its tasks: barriers, zeroed operands and whatever the task list says, before the kernels ahead of
// it on the stream have ended; then where the rows stand, their angles, the claim queues. Meanwhile the producer of the lean
// order streams the first weights.
#pragma once

#include "mk_common.cuh"

namespace pointcode::mk {

constexpr int kHelperRegisters = 136, kConsumerRegisters = 184;

template <int NB>
__device__ void init_barriers(Smem<NB>& s) {
  for (int i = 0; i < Smem<NB>::kStages; i++)
    mbar_init(&s.ring_full[i], 1), mbar_init(&s.ring_empty[i], kConsumers), s.number[i] = 0;
  for (int i = 0; i < kDescSlots; i++)
    mbar_init(&s.f.desc_full[i], 1), mbar_init(&s.f.desc_empty[i], 12);
  for (int i = 0; i < Fixed<NB>::kRedSlots; i++)
    mbar_init(&s.f.red_full[i], kConsumers), s.f.red_free[i] = i;
  for (int i = 0; i < kItemSlots; i++)
    mbar_init(&s.f.item_full[i], 1), mbar_init(&s.f.item_empty[i], kConsumers);
  mbar_init(&s.f.warp_sync, kConsumers), mbar_init(&s.f.route_full, 1);
  mbar_init(&s.f.chosen_full, kConsumers), mbar_init(&s.f.started, kThreads / 32 - 1);
  mbar_init_fence();
}

// Where each row stands, and cos and sin of its angles: angle(i) = position *
// theta^(-2 i / head_dim), in fp32 as the reference does. By threads `me` of `n`.
template <int NB>
__device__ __forceinline__ void row_table(Smem<NB>& s, const Params& p, int me, int n) {
  const int half = p.head_dim / 2;
  if (me < p.n_rows) {
    const int position = p.positions[me];
    s.f.position[me] = position;
    for (int group = 0; group < 2; group++)
      s.f.page[group][me] = page_table(p, group, me)[position / kPageTokens];
  }
  for (int i = me; i < p.n_rows * half; i += n) {
    const int row = i / half, k = i % half;
    const float frequency =
        1.f / powf(p.rope_theta, static_cast<float>(2 * k) / static_cast<float>(p.head_dim));
    const double turns = static_cast<double>(static_cast<float>(p.positions[row]) * frequency) *
                         0.31830988618379067;  // / pi
    float sine, cosine;
    sincospif(static_cast<float>(turns - 2.0 * rint(turns * 0.5)), &sine,
              &cosine);  // no slow path, no local memory
    s.f.rope[row][k] = {cosine, sine};
  }
}
// The claim queues of the next step.
__device__ __forceinline__ void clear_queues(const Params& p, int me, int n) {
  if (blockIdx.x != 0) return;
  for (int i = me; i < p.n_queues; i += n) p.queues[((p.step & 1) ^ 1) * p.n_queues + i] = 0;
}

// What needs nothing of the kernels before. Ends in a barrier of the block.
template <int NB>
__device__ __forceinline__ void set_up_block(const Params& p) {
  Smem<NB>& s = smem<NB>();
  if (threadIdx.x == 0) init_barriers(s);
  for (int i = threadIdx.x; i < kMaxGroup * (kMaxHeadDim + 8); i += kThreads)
    (&s.f.q[0][0])[i] = __float2bfloat16(0.f);
  for (int i = threadIdx.x; i < kMaxGroup * 136; i += kThreads)
    (&s.f.prob[0][0])[i] = __float2bfloat16(0.f);
  for (int i = threadIdx.x; i < 256; i += kThreads) s.f.routes[i] = 0;
  __syncthreads();
  const int begin = p.offsets[blockIdx.x], end = p.offsets[blockIdx.x + 1];
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads)
    if (p.tasks[i].flags & kFlagFusedTopK) s.f.routes[p.tasks[i].layer] = 1;
  let_next_kernel_start();
  __syncthreads();
}

// A warp's part of the set-up that the others wait for is done; returns when all parts are.
template <int NB>
__device__ __forceinline__ void join_start(const Params& p) {
  uint64_t* started = &smem<NB>().f.started;
  __syncwarp();
  if ((threadIdx.x & 31) == 0) mbar_arrive(started);
  mbar_wait(p, started, 0, 0, WaitKind::kStart);
}

// The whole set-up at once, by all threads.
template <int NB>
__device__ __forceinline__ void set_up(const Params& p) {
  set_up_block<NB>(p);
  wait_for_earlier_kernels();
  row_table(smem<NB>(), p, static_cast<int>(threadIdx.x), kThreads);
  clear_queues(p, static_cast<int>(threadIdx.x), kThreads);
  __syncthreads();
}

}  // namespace pointcode::mk
