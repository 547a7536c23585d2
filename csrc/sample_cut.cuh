// Where the kept tokens of top_k end, and of top_p behind it: histograms, refined digit by digit.
#pragma once

#include "sample_core.cuh"

namespace pointcode::gpu {

struct SamplerCut : SamplerCore {
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
    const uint64_t mass = mass_of(x, top_x);
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
    if (target == 0) target = target_of(row, s.total_value);
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
    uint64_t target = by_mass ? target_of(row, s.total_value) : static_cast<uint64_t>(row.top_k);
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
};

}  // namespace pointcode::gpu
