// The storer's last word on a step: which tokens of this SM's lead. The sampler then need not walk the logits, or not as
// often. A lane keeps the leader of its output row of all tiles, for each batch row.
#pragma once

#include "leader.cuh"
#include "mk_common.cuh"

namespace pointcode::mk {

template <int NB>
__device__ __forceinline__ void begin_leaders(const Params& p) {
  if (!p.leaders) return;
  Fixed<NB>& f = smem<NB>().f;
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int i = lane; i < NB * 16; i += 32) f.leader[i / 16][i % 16] = kNoLeader;
  if (lane < p.n_rows) f.noise_key[lane] = noise_key(p.draw[lane].seed, f.position[lane]);
  __syncwarp();
}

template <int NB>
__device__ __forceinline__ void offer_leader(const Params& p, int row, int token, float logit) {
  if (!p.leaders) return;
  Fixed<NB>& f = smem<NB>().f;
  Leader& mine = f.leader[row][threadIdx.x & 15];
  lead_by_logit(mine, logit, token);
  if (!p.draw[row].draws) return;
  float score = 0.f;
  if (may_win(__fmul_rn(logit, p.draw[row].inverse), noise_of_key(f.noise_key[row], token),
              mine.score, score))
    lead_by_score(mine, score, token);
}

template <int NB>
__device__ __forceinline__ void publish_leaders(const Params& p) {
  if (!p.leaders) return;
  const int lane = threadIdx.x & 31;
  __syncwarp();
#pragma unroll 1
  for (int row = 0; row < p.n_rows; row++) {
    const Leader l = leader_of_lanes(smem<NB>().f.leader[row][lane & 15], 8);
    if (lane == 0) p.leaders[static_cast<size_t>(row) * gridDim.x + blockIdx.x] = l;
  }
}

}  // namespace pointcode::mk
