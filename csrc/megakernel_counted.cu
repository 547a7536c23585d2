// The decode megakernel for the published orders (shipped, interleaved, attention_first): all 16 opcodes, ordered by
// counters, with claimed queues for full attention and the experts. The block, the ring and most of the roles are those of
// the lean kernel (megakernel.cu); it is a kernel of its own so that the lean one stays as it was measured.
#include <cuda_runtime.h>

#include "mk_counted_consumer.cuh"
#include "mk_counted_stream.cuh"
#include "mk_launch.cuh"
#include "mk_setup.cuh"

namespace pointcode::mk {
namespace {

template <int NB>
__device__ __forceinline__ void controller_loop(const Params& p, const TaskDescriptor* list,
                                                int n_tasks) {
  DescriptorReader<NB> reader;
  DescriptorFeed<NB> feed{p, list, n_tasks, 0};
#pragma unroll 1
  while (reader.i < static_cast<uint32_t>(n_tasks)) {
    feed.refill(static_cast<int>(reader.i));
    reader.open(p);
    reader.close();
  }
}

template <int NB>
__global__ void __launch_bounds__(kThreads, 1) counted_step(const __grid_constant__ Params p) {
  const int warp = threadIdx.x >> 5, begin = p.offsets[blockIdx.x],
            n = p.offsets[blockIdx.x + 1] - begin;
  uint32_t* other =
      p.counters + static_cast<size_t>((p.step & 1) ^ 1) * p.n_counters * kCounterWords;
  set_up<NB>(p);
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < p.n_counters; i += kThreads)
      other[static_cast<size_t>(i) * kCounterWords] = 0;
  if (warp >= kFirstConsumer) {
    set_more_registers<kConsumerRegisters>();
    CountedConsumer<NB>(p).loop(n);
  } else {
    set_fewer_registers<kHelperRegisters>();
    if (warp == kController) controller_loop<NB>(p, p.tasks + begin, n);
    if (warp == kProducer) CountedProducer<NB>{{p}}.loop(n);
    if (warp == kStorer) CountedStorer<NB>{{p}}.loop(n);
    if (warp == kCombiner) combiner_loop<NB>(p, n);
  }
}

template <int NB>
cudaError_t launch(const Params& p, int n_sms, cudaStream_t stream) {
  constexpr int kSmem = static_cast<int>(sizeof(Smem<NB>));
  static const cudaError_t ready = make_ready(counted_step<NB>, kSmem);
  return ready == cudaSuccess ? launch_step(counted_step<NB>, p, n_sms, kSmem, stream) : ready;
}

}  // namespace

int launch_counted(const Params& p, int n_sms, void* stream) {
  const auto s = static_cast<cudaStream_t>(stream);
  if (p.n_rows <= 1) return launch<1>(p, n_sms, s);
  if (p.n_rows <= 2) return launch<2>(p, n_sms, s);
  if (p.n_rows <= 4) return launch<4>(p, n_sms, s);
  return launch<8>(p, n_sms, s);
}

}  // namespace pointcode::mk
