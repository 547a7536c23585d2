// The decode megakernel: one persistent block per SM runs its task list for one decode step.
//
// 384 threads: warp 0 controller (and combiner), 1 producer, 2 storer, 3 combiner, 4..11 consumers. mk_common.cuh lists
// every sync site; the roles are in mk_producer, mk_consumer, mk_storer and mk_combine.
#include <cuda_runtime.h>

#include "mk_combine.cuh"
#include "mk_consumer.cuh"
#include "mk_launch.cuh"
#include "mk_producer.cuh"
#include "mk_setup.cuh"
#include "mk_storer.cuh"

namespace pointcode::mk {
namespace {

// Warps 0 and 3: warp 0 feeds the descriptors, warp 3 routes; both merge attention splits.
template <int NB>
__device__ __forceinline__ void controller_and_combiner(const Params& p, const TaskDescriptor* list,
                                                        int n, int half) {
  DescriptorReader<NB> reader;
  DescriptorFeed<NB> feed{p, list, n, min(n, kDescSlots)};
  int routed = -1;
  uint32_t routes = 0;
#pragma unroll 1
  while (reader.i < static_cast<uint32_t>(n)) {
    if (half == 0) feed.refill(static_cast<int>(reader.i));
    const TaskDescriptor& d = reader.open(p);
    if (half == 1 && (d.flags & kFlagFusedTopK) && routed != d.layer) {
      routed = d.layer;
      make_route<NB>(p, d.ordinal, d.layer, routes++);
      if ((threadIdx.x & 31) == 0) mbar_arrive(&smem<NB>().f.route_full);
      stamp(p, 15, d.layer);
    }
    if (d.opcode == static_cast<int>(Opcode::kAttnCombine)) combine(p, d, half);
    reader.close();
  }
}

template <int NB, bool kChains>
__global__ void __launch_bounds__(kThreads, 1) decode_step(const __grid_constant__ Params p) {
  const int warp = threadIdx.x >> 5, begin = p.offsets[blockIdx.x],
            n = p.offsets[blockIdx.x + 1] - begin;
  set_up_block<NB>(p);
  if (warp == kController) DescriptorFeed<NB>{p, p.tasks + begin, n}.refill(0);
  if (warp != kProducer) {
    wait_for_earlier_kernels();
    if (warp >= kFirstConsumer)
      row_table(smem<NB>(), p, static_cast<int>(threadIdx.x) - kFirstConsumer * 32,
                kConsumers * 32);
    if (warp == kStorer) Storer<NB>{p}.embed();
    if (warp == kCombiner) clear_queues(p, static_cast<int>(threadIdx.x & 31), 32);
    join_start<NB>(p);
  }
  if (warp >= kFirstConsumer) {
    set_more_registers<kConsumerRegisters>();
    Consumer<NB, kChains>(p).loop(n);
  } else {
    set_fewer_registers<kHelperRegisters>();
    if (warp == kProducer) Producer<NB, kChains>{p}.loop(n);
    if (warp == kStorer) Storer<NB>{p}.loop(n);
    if (warp == kController || warp == kCombiner)
      controller_and_combiner<NB>(p, p.tasks + begin, n, warp == kCombiner);
  }
}

template <int NB, bool kChains>
cudaError_t launch_variant(const Params& p, int n_sms, cudaStream_t stream) {
  constexpr int kSmem = static_cast<int>(sizeof(Smem<NB>));
  static const cudaError_t ready = make_ready(decode_step<NB, kChains>, kSmem);
  if (ready != cudaSuccess) return ready;
  return launch_step(decode_step<NB, kChains>, p, n_sms, kSmem, stream);
}

// What chains need costs the other steps 2 to 3 % (docs/kernel-log.md), so steps without one have a kernel without it.
template <int NB>
cudaError_t launch(const Params& p, int n_sms, cudaStream_t stream) {
  if constexpr (NB > 1)
    for (int row = 0; row < p.n_rows; row++)
      if (p.first_row[row] != row) return launch_variant<NB, true>(p, n_sms, stream);
  return launch_variant<NB, false>(p, n_sms, stream);
}

}  // namespace

int smem_bytes(int n_rows) {
  return static_cast<int>(n_rows <= 1   ? sizeof(Smem<1>)
                          : n_rows <= 2 ? sizeof(Smem<2>)
                          : n_rows <= 4 ? sizeof(Smem<4>)
                                        : sizeof(Smem<8>));
}
int ring_stages(int n_rows) {
  return n_rows <= 1   ? Smem<1>::kStages
         : n_rows <= 2 ? Smem<2>::kStages
         : n_rows <= 4 ? Smem<4>::kStages
                       : Smem<8>::kStages;
}

}  // namespace pointcode::mk

// C interface: tests load it with ctypes, the extension calls it. `params`: pointcode::mk::Params in host memory.
POINTCODE_EXPORT int pointcode_mk_step(const void* params, int n_sms, void* stream) {
  using namespace pointcode::mk;
  const Params& p = *static_cast<const Params*>(params);
  const auto s = static_cast<cudaStream_t>(stream);
  if (p.counted) return launch_counted(p, n_sms, s);
  if (p.n_rows <= 1) return launch<1>(p, n_sms, s);
  if (p.n_rows <= 2) return launch<2>(p, n_sms, s);
  if (p.n_rows <= 4) return launch<4>(p, n_sms, s);
  return launch<8>(p, n_sms, s);
}
POINTCODE_EXPORT int pointcode_mk_params_size() { return sizeof(pointcode::mk::Params); }
POINTCODE_EXPORT int pointcode_mk_stages(int n_rows) { return pointcode::mk::ring_stages(n_rows); }
