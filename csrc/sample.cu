// One cluster of eight blocks per row; each block takes one eighth of the vocabulary and walks it
// once per pass: maximum and NaN check; for top_k and top_p a few histogram passes that find where
// the kept tokens end; the Gumbel draw; log-probabilities. Sums that decide are integers, so that
// the result does not depend on the order of anything.
//
// Sync sites: every exchange is "write own shared memory, cluster barrier, read all eight blocks'
// memory". Exchanges alternate between two slots (a block that writes slot n & 1 has passed barrier
// n - 1, after which nobody reads it). Histograms are cleared after a second barrier. Blocks end
// after a last barrier, as others read their memory.
//
// The start overlaps the end of the step's kernel, and the next step's blocks may take the free SMs while
// this one runs (mk_launch.cuh).
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "mk_ptx.cuh"
#include "sample.h"
#include "sample_shared.cuh"
#include "token_noise.h"

namespace pointcode::gpu {
namespace {

namespace cg = cooperative_groups;

struct Sampler {
  const SampleParams& p;
  const SampleRow& row;
  Shared& s;
  const int r;
  cg::cluster_group cluster = cg::this_cluster();
  uint32_t exchanges = 0;
  float inverse = 1.f, top_x = 0.f, threshold = 0.f;

  __device__ __forceinline__ const float* logits() const {
    return p.logits + static_cast<size_t>(r) * p.vocab;
  }
  __device__ __forceinline__ bool is_plain() const {
    return !row.has_bias && !row.has_penalties && !row.has_mask;
  }

  // Calls f(token, logit) for this thread's tokens.
  template <typename F>
  __device__ __forceinline__ void each(F&& f) const {
    const int per_block = ((p.vocab + kBlocks - 1) / kBlocks + 3) / 4 * 4;
    const int begin = min(p.vocab, static_cast<int>(cluster.block_rank()) * per_block),
              end = min(p.vocab, begin + per_block);
    const float* x = logits();
    if (p.vocab % 4 == 0) {
#pragma unroll 4
      for (int t = begin + static_cast<int>(threadIdx.x) * 4; t < end; t += kThreads * 4) {
        const float4 v = *reinterpret_cast<const float4*>(x + t);
        f(t, v.x), f(t + 1, v.y), f(t + 2, v.z), f(t + 3, v.w);
      }
    } else {
#pragma unroll 1
      for (int t = begin + static_cast<int>(threadIdx.x); t < end; t += kThreads) f(t, x[t]);
    }
  }

  // The logit after bias, penalties and mask, in the CPU sampler's order and rounding.
  __device__ __forceinline__ float adjusted(int t, float x) const {
    const size_t at = static_cast<size_t>(row.sequence) * p.vocab + t;
    if (row.has_mask &&
        (p.masks[static_cast<size_t>(r) * p.mask_words + t / 32] >> (t % 32) & 1u) == 0)
      return -INFINITY;
    if (row.has_bias) x = __fadd_rn(x, p.bias[at]);
    const int n = row.has_penalties ? p.counts[at] : 0;
    if (n == 0) return x;
    x = x > 0.f ? __fdiv_rn(x, row.repetition_penalty) : __fmul_rn(x, row.repetition_penalty);
    return __fsub_rn(x, __fadd_rn(__fmul_rn(row.frequency_penalty, static_cast<float>(n)),
                                  row.presence_penalty));
  }
  __device__ __forceinline__ float value(int t, float x) const {
    return is_plain() ? x : adjusted(t, x);
  }

  // ------------------------------------------------------------------------------------------
  // exchanges The best of all threads of the cluster, and whether any has `flag` set. A lane looks at one
  // warp, then at one block, so that no chain is longer than five.
  __device__ Best best_of_all(Best mine, bool& flag) {
    const int lane = threadIdx.x & 31;
    mine = best_of_lanes(mine, 16);
    if (lane == 0) s.warp_best[threadIdx.x / 32] = mine;
    const int any = __syncthreads_or(flag);
    const uint32_t slot = exchanges++ & 1;
    if (threadIdx.x < 32) {
      const Best b = best_of_lanes(s.warp_best[lane], 16);
      if (lane == 0) s.best[slot] = b, s.flag[slot] = any;
    }
    cluster.sync();
    const int other = lane % kBlocks;
    flag = __any_sync(~0u, *cluster.map_shared_rank(&s.flag[slot], other) != 0);
    return best_of_lanes(*cluster.map_shared_rank(&s.best[slot], other), kBlocks / 2);
  }
  static __device__ __forceinline__ Best best_of_lanes(Best mine, int widest) {
    static_assert(kWarps == 32 && 32 % kBlocks == 0);
#pragma unroll
    for (int i = 16; i; i >>= 1) {
      if (i > widest) continue;
      const float v = __shfl_xor_sync(~0u, mine.value, i);
      mine.offer(v, __shfl_xor_sync(~0u, mine.token, i));
    }
    return mine;
  }

  __device__ double sum_of_all(double mine) {
#pragma unroll 1
    for (int i = 16; i; i >>= 1) mine += __shfl_xor_sync(~0u, mine, i);
    if ((threadIdx.x & 31) == 0) s.warp_sum[threadIdx.x / 32] = mine;
    __syncthreads();
    const uint32_t slot = exchanges++ & 1;
    if (threadIdx.x == 0) {
      double total = 0;
#pragma unroll 1
      for (int w = 0; w < kWarps; w++) total += s.warp_sum[w];
      s.sum[slot] = total;
    }
    cluster.sync();
    double total = 0;
#pragma unroll 1
    for (int b = 0; b < kBlocks; b++) total += *cluster.map_shared_rank(&s.sum[slot], b);
    return total;
  }

  // ------------------------------------------------------------------------------------------
  // top_k, top_p
  __device__ __forceinline__ int bin_of(float x) const {
    return min(kBins - 1, static_cast<int>(__fmul_rn(__fsub_rn(top_x, x), kBinsPerUnit)));
  }
  __device__ __forceinline__ bool kept(const Cut& cut, int bin, uint64_t key) const {
    return bin < cut.bin || (bin == cut.bin && key >= cut.key);
  }

  __device__ __forceinline__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) s.count[i] = s.low[i] = s.high[i] = 0;
    __syncthreads();
  }
  __device__ __forceinline__ void add(int bin, float x, bool by_mass) {
    atomicAdd(&s.count[bin], 1u);
    if (!by_mass) return;
    const uint64_t mass = __float2ull_rn(expf(__fsub_rn(x, top_x)) * kMassOne);
    atomicAdd(&s.low[bin], static_cast<uint32_t>(mass) & ((1u << kLowBits) - 1));
    atomicAdd(&s.high[bin], static_cast<uint32_t>(mass >> kLowBits));
  }

  // Sums the eight histograms and scans the bins in order: s.total_*, and with `target` (or, when
  // it is 0, top_p of the total) the bin in which the running sum reaches it. Every block comes to
  // the same result.
  __device__ void scan(bool by_mass, uint64_t target) {
    cluster.sync();
    uint32_t count[2] = {};
    uint64_t value[2] = {};
#pragma unroll 4
    for (int b = 0; b < kBlocks; b++) {
      const Shared& other = *cluster.map_shared_rank(&s, b);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int bin = threadIdx.x * 2 + i;
        const uint32_t n = other.count[bin];
        count[i] += n;
        value[i] +=
            by_mass ? (static_cast<uint64_t>(other.high[bin]) << kLowBits) + other.low[bin] : n;
      }
    }
    uint64_t upto = value[0] + value[1];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int i = 1; i < 32; i <<= 1) {
      const uint64_t v = __shfl_up_sync(~0u, upto, i);
      if (lane >= i) upto += v;
    }
    if (lane == 31) s.warp_scan[warp] = upto;
    if (threadIdx.x == 0) s.total_count = 0;
    __syncthreads();
    atomicAdd(&s.total_count, count[0] + count[1]);
#pragma unroll 1
    for (int w = 0; w < warp; w++) upto += s.warp_scan[w];
    if (threadIdx.x == kThreads - 1) s.total_value = upto;
    __syncthreads();
    if (target == 0) {
      const double wanted =
          ceil(static_cast<double>(row.top_p) * static_cast<double>(s.total_value));
      target = wanted < 1.0 ? 1 : static_cast<uint64_t>(wanted);
    }
    uint64_t before = upto - value[0] - value[1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (before < target && target <= before + value[i])
        s.found = {static_cast<int32_t>(threadIdx.x) * 2 + i, count[i], before, value[i]};
      before += value[i];
    }
    cluster.sync();  // also makes s.found visible in the block
  }

  // Narrows `cut` to the first tokens, in descending order, whose count reaches top_k or whose mass
  // reaches top_p.
  __device__ void select(bool by_mass, Cut& cut) {
    clear();
    each([&](int t, float raw) {
      const float logit = value(t, raw), x = __fmul_rn(logit, inverse);
      if (!(logit >= threshold)) return;
      const int bin = bin_of(x);
      if (kept(cut, bin, key_of(x, t))) add(bin, x, by_mass);
    });
    __syncthreads();
    scan(by_mass, by_mass ? 0 : static_cast<uint64_t>(row.top_k));
    if (!by_mass && s.total_count <= static_cast<uint32_t>(row.top_k)) return;
    const double wanted = ceil(static_cast<double>(row.top_p) * static_cast<double>(s.total_value));
    uint64_t target = by_mass ? (wanted < 1.0 ? 1 : static_cast<uint64_t>(wanted))
                              : static_cast<uint64_t>(row.top_k);
    const Cut outer = cut;
    Cut inner{s.found.bin, outer.bin == s.found.bin ? outer.key : 0};
    uint64_t prefix = 0;
    int shift = 64;  // the key's digits: 11, 11, 10 bits of the value, then of the token
#pragma unroll 1
    for (int level = 0; level < 6; level++) {
      const bool whole = s.found.count == 1 || s.found.before + s.found.value == target;
      if (whole) break;
      target -= s.found.before;
      const int width = level % 3 == 2 ? 10 : 11;
      shift -= width;
      clear();
      each([&](int t, float raw) {
        const float logit = value(t, raw), x = __fmul_rn(logit, inverse);
        if (!(logit >= threshold) || bin_of(x) != inner.bin) return;
        const uint64_t key = key_of(x, t);
        if (!kept(outer, inner.bin, key)) return;
        if (level > 0 && key >> (shift + width) != prefix) return;
        const int digit = static_cast<int>(key >> shift) & ((1 << width) - 1);
        add(kBins - 1 - digit, x, by_mass);
      });
      __syncthreads();
      scan(by_mass, target);
      const uint64_t digit = static_cast<uint64_t>(kBins - 1 - s.found.bin);
      prefix = level == 0 ? digit : prefix << width | digit;
      inner.key = prefix << shift;
    }
    cut = inner.key > outer.key || inner.bin != outer.bin ? inner : outer;
  }

  // ------------------------------------------------------------------------------------------ draw
  __device__ int32_t draw(const Best& top) {
    inverse = __fdiv_rn(1.f, row.temperature);
    top_x = __fmul_rn(top.value, inverse);
    if (!isfinite(top_x)) return top.token;
    const float reach = row.min_p > 0.f ? fminf(kReach, -logf(row.min_p)) : kReach;
    const float collect = row.top_p < 1.f ? kReach : reach;
    threshold = __fsub_rn(top.value, __fmul_rn(collect, row.temperature));
    Cut cut;
    if (row.top_k > 0 && row.top_k < p.vocab) select(false, cut);
    if (row.top_p < 1.f) select(true, cut);
    const uint64_t key = noise_key(row.seed, row.position);
    const float lowest = __fsub_rn(top_x, reach);
    const bool cuts = cut.bin < kBins;
    Best best;
    best.offer(__fadd_rn(top_x, gumbel(noise_of_key(key, top.token))), top.token);
    each([&](int t, float raw) {
      const float logit = value(t, raw), x = __fmul_rn(logit, inverse);
      if (!(logit >= threshold) || x < lowest || x + kMaxNoise < best.value) return;
      if (cuts && !kept(cut, bin_of(x), key_of(x, t))) return;
      const float noise = noise_of_key(key, t);
      if (x - __logf(noise) + 0.01f < best.value) return;  // -log(-log1p(-v)) < -log(v)
      best.offer(__fadd_rn(x, gumbel(noise)), t);
    });
    bool flag = false;
    return best_of_all(best, flag).token;
  }

  // ------------------------------------------------------------------------------------------
  // log-probabilities Of the model's own distribution: the chosen token, then the most likely ones.
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

  __device__ void finish(int32_t token, SampleStatus status, int n_logprobs) {
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
    const uint64_t word = static_cast<uint64_t>(p.stamp) << 34 |
                          static_cast<uint64_t>(status) << 32 | static_cast<uint32_t>(token);
    asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(&out.word), "l"(word) : "memory");
  }

  __device__ void run() {
    const bool writer = cluster.block_rank() == 0 && threadIdx.x == 0;
    // Asked now and used at the end; the logits of an aborted step are old ones and sampled all the same.
    const bool aborted = writer && mk::load_relaxed(p.abort_flag) != 0;
    Best mine;
    bool has_nan = false;
    each([&](int t, float x) {
      mine.offer(x, t);
      has_nan |= x != x;
    });
    const Best raw = best_of_all(mine, has_nan);
    Best top = raw;
    if (!has_nan && !is_plain()) {
      Best changed;
      each([&](int t, float x) { changed.offer(adjusted(t, x), t); });
      bool flag = false;
      top = best_of_all(changed, flag);
    }
    int32_t token = has_nan ? 0 : top.token;
    int n = 0;
    if (!has_nan && row.temperature > 0.f) token = draw(top);
    if (!has_nan && row.n_logprobs > 0) n = logprobs(raw, token, writer);
    if (writer)
      finish(token,
             aborted   ? SampleStatus::kAborted
             : has_nan ? SampleStatus::kNan
                       : SampleStatus::kOk,
             n);
    cluster.sync();  // others may still read this block's memory
  }
};

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    sample_rows(const __grid_constant__ SampleParams p) {
  __shared__ Shared shared;
  mk::wait_for_earlier_kernels();
  mk::let_next_kernel_start();
  Sampler{p, p.rows[blockIdx.y], shared, static_cast<int>(blockIdx.y)}.run();
}

}  // namespace
}  // namespace pointcode::gpu

extern "C" int pointcode_sample(const void* params, void* stream) {
  using namespace pointcode::gpu;
  const SampleParams& p = *static_cast<const SampleParams*>(params);
  if (p.vocab > kMaxSampleVocab || p.n_rows < 1 || p.n_rows > kMaxSampleRows)
    return cudaErrorInvalidValue;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kBlocks, p.n_rows), config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, sample_rows, p);
}
extern "C" int pointcode_sample_params_size() { return sizeof(pointcode::gpu::SampleParams); }
