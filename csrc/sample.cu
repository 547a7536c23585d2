// Sampling on the GPU. A step's kernel has already told which token of each SM's leads by logit and by score (leader.h), so
// that a greedy row, and one that draws from all tokens, is the best of the SMs' leaders. With top_p the masses of all tokens
// and of those before the winner are summed in one walk over the logits, and if it is not among the kept ones the draw is
// repeated above it. Rows with more to them walk from the start: one cluster of eight blocks per row, each an eighth of the
// vocabulary. Sums that decide are integers, so that the result does not depend on the order of anything.
//
// The start overlaps the end of the step's kernel, and the next step's blocks may take the free SMs while this one waits or
// runs (mk_launch.cuh).
#include "mk_ptx.cuh"
#include "sample_cut.cuh"
#include "sample_leaders.cuh"

namespace pointcode::gpu {
namespace {

// Tells the next step and the host. By one thread.
__device__ void finish(const SampleParams& p, int r, int32_t token, SampleStatus status,
                       int n_logprobs) {
  const SampleRow& row = p.rows[r];
  SampleResult& out = p.results[r];
  if (status != SampleStatus::kAborted) {
    p.tokens[r] = token;
    p.positions[r] = row.position + 1;
    if (row.has_penalties) p.counts[static_cast<size_t>(row.sequence) * p.vocab + token] += 1;
  }
  if (n_logprobs > 0) {
    out.n_logprobs = n_logprobs;
    __threadfence_system();
  }
  const uint64_t word = static_cast<uint64_t>(p.stamp) << 34 | static_cast<uint64_t>(status) << 32 |
                        static_cast<uint32_t>(token);
  asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(&out.word), "l"(word) : "memory");
}
__device__ __forceinline__ SampleStatus status_of(bool aborted, bool has_nan) {
  return aborted ? SampleStatus::kAborted : has_nan ? SampleStatus::kNan : SampleStatus::kOk;
}

struct Sampler : SamplerCut {
  // ------------------------------------------------------------------------------------------ draw
  __device__ void begin_draw(const Best& top) {
    inverse = __fdiv_rn(1.f, row.temperature);
    top_x = __fmul_rn(top.value, inverse);
  }
  // `drawn`: who wins among all tokens, if it is known.
  __device__ int32_t draw(const Best& top, Best drawn) {
    if (!isfinite(top_x)) return top.token;
    const float reach = reach_of(row), collect = row.top_p < 1.f ? kReach : reach;
    const float lowest = __fsub_rn(top_x, reach);
    threshold = __fsub_rn(top.value, __fmul_rn(collect, row.temperature));
    Cut cut;
    const bool counts = row.keeps_top_k(p.vocab);
    if (counts) select(false, cut);
    if (counts && row.top_p < 1.f) select(true, cut);
    uint64_t above = 0, target = 0;
    if (drawn.token != kNoToken && x_of(drawn.token) < lowest) drawn = {};
#pragma unroll 1
    while (true) {
      if (drawn.token == kNoToken) drawn = draw_above(top, cut, lowest, above);
      if (drawn.token == top.token || counts || row.top_p >= 1.f) return drawn.token;
      above = key_of(x_of(drawn.token), drawn.token);
      const Masses m = masses_before(above);
      if (target == 0) target = target_of(row, m.total);
      if (m.before < target) return drawn.token;
      drawn = {};
    }
  }
  __device__ __forceinline__ float x_of(int32_t token) const {
    return __fmul_rn(value(token, logits()[token]), inverse);
  }
  // The winner of those in the cut whose key is above `above`; the top token is always one of them.
  __device__ Best draw_above(const Best& top, const Cut& cut, float lowest, uint64_t above) {
    const uint64_t key = noise_key(row.seed, row.position);
    const bool cuts = cut.bin < kBins;
    Best best;
    best.offer(__fadd_rn(top_x, gumbel(noise_of_key(key, top.token))), top.token);
    each([&](int t, float raw) {
      const float logit = value(t, raw), x = __fmul_rn(logit, inverse);
      if (!(logit >= threshold) || x < lowest || x + kMaxNoise < best.value) return;
      if (cuts && !kept(cut, bin_of(x), key_of(x, t))) return;
      if (above && key_of(x, t) <= above) return;
      float score;
      if (may_win(x, noise_of_key(key, t), best.value, score)) best.offer(score, t);
    });
    bool flag = false;
    return best_of_all(best, flag);
  }
  // The mass of all tokens, and of those whose key is above `key`.
  __device__ Masses masses_before(uint64_t key) {
    Masses mine{};
    each([&](int t, float raw) {
      const float logit = value(t, raw), x = __fmul_rn(logit, inverse);
      if (!(logit >= threshold)) return;
      const uint64_t mass = mass_of(x, top_x);
      mine.total += mass;
      if (key_of(x, t) > key) mine.before += mass;
    });
    return masses_of_all(mine);
  }

  // ------------------------------------------------------------------------------------------ log-probabilities
  // Of the model's own distribution: the chosen token, then the most likely ones.
  // Written by one thread of rank 0.
  __device__ int logprobs(const Best& top, int32_t chosen, bool writer) {
    double mine = 0;
    each([&](int, float x) { mine += expf(__fsub_rn(x, top.value)); });
    const float log_total = top.value + static_cast<float>(log(sum_of_all(mine)));
    SampleResult& out = p.results[r];
    if (writer) out.ids[0] = chosen, out.values[0] = logits()[chosen] - log_total;
    int n = 1;
    Best last = top;
#pragma unroll 1
    for (int i = 0; i < min(row.n_logprobs, min(p.vocab, kSampleLogprobs - 1)); i++) {
      if (i > 0) {
        Best next;
        each([&](int t, float x) {
          if (x < last.value || (x == last.value && t > last.token)) next.offer(x, t);
        });
        bool flag = false;
        last = best_of_all(next, flag);
      }
      if (last.token == chosen) continue;
      if (writer) out.ids[n] = last.token, out.values[n] = last.value - log_total;
      n++;
    }
    return n;
  }

  // What the step's kernel knows is taken where it is enough: no exchange then.
  __device__ void run() {
    const bool writer = cluster.block_rank() == 0 && threadIdx.x == 0;
    // Asked now and used at the end; the logits of an aborted step are old ones and sampled all the same.
    const bool aborted = writer && mk::load_relaxed(p.abort_flag) != 0;
    Best raw, drawn;
    bool has_nan = false;
    const bool led = is_led(p, row);
    if (led) {
      const Leader leader = leader_of_all(p, r);
      raw = {leader.logit, leader.token}, has_nan = leader.logit != leader.logit;
      if (row.draws_from_all(p.vocab)) drawn = {leader.score, leader.drawn};
      if (has_nan || is_settled(p, row, leader)) {
        if (writer) finish(p, r, settled_token(row, leader), status_of(aborted, has_nan), 0);
        return;
      }
    } else {
      each([&](int t, float x) {
        raw.offer(x, t);
        has_nan |= x != x;
      });
      raw = best_of_all(raw, has_nan);
    }
    Best top = raw;
    if (!has_nan && !is_plain()) {
      Best changed;
      each([&](int t, float x) { changed.offer(adjusted(t, x), t); });
      bool flag = false;
      top = best_of_all(changed, flag);
    }
    int32_t token = has_nan ? 0 : top.token;
    int n = 0;
    if (!has_nan && row.temperature > 0.f) begin_draw(top), token = draw(top, drawn);
    if (!has_nan && row.n_logprobs > 0) n = logprobs(raw, token, writer);
    if (writer) finish(p, r, token, status_of(aborted, has_nan), n);
    cluster.sync();  // others may still read this block's memory
  }
};

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    sample_rows(const __grid_constant__ SampleParams p) {
  __shared__ Shared shared;
  mk::let_next_kernel_start();
  mk::wait_for_earlier_kernels();
  const int r = static_cast<int>(blockIdx.y);
  Sampler{{{p, p.rows[r], shared, r}}}.run();
}

// Rows that the step's kernel has settled: a warp each.
__global__ void __launch_bounds__(32) sample_leaders(const __grid_constant__ SampleParams p) {
  mk::let_next_kernel_start();
  mk::wait_for_earlier_kernels();
  const int r = static_cast<int>(blockIdx.x);
  const bool aborted = mk::load_relaxed(p.abort_flag) != 0;
  const Leader leader = leader_of_all(p, r);
  if (threadIdx.x == 0)
    finish(p, r, settled_token(p.rows[r], leader), status_of(aborted, leader.logit != leader.logit),
           0);
}

// With a shared memory as large as a step's, so that no SM has to be set up anew in between.
cudaError_t make_ready(void (*kernel)(SampleParams)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}
cudaError_t launch(void (*kernel)(SampleParams), const SampleParams& p, dim3 grid, int threads,
                   void* stream) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = dim3(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace
}  // namespace pointcode::gpu

extern "C" int pointcode_sample(const void* params, void* stream) {
  using namespace pointcode::gpu;
  const SampleParams& p = *static_cast<const SampleParams*>(params);
  if (p.vocab > kMaxSampleVocab || p.n_rows < 1 || p.n_rows > kMaxSampleRows)
    return cudaErrorInvalidValue;
  static const cudaError_t ready[] = {make_ready(sample_rows), make_ready(sample_leaders)};
  for (const cudaError_t error : ready)
    if (error != cudaSuccess) return error;
  bool settled = true;
  for (int r = 0; r < p.n_rows; r++) settled = settled && will_be_settled(p, p.rows[r]);
  if (settled) return launch(sample_leaders, p, dim3(p.n_rows), 32, stream);
  return launch(sample_rows, p, dim3(kBlocks, p.n_rows), kThreads, stream);
}
extern "C" int pointcode_sample_params_size() { return sizeof(pointcode::gpu::SampleParams); }
