// What a decode step says of its logits beside the logits: plain data, shared by the megakernel and the sampler.
#pragma once

#include <cstdint>
#include <limits>

namespace pointcode {

// The tokens of a part of the vocabulary that lead: by logit, and by logit / temperature + noise. Of equal ones the lower
// token. No token: kNoToken behind -infinity. `logit` is NaN when any of the part is.
struct Leader {
  float logit;
  int32_t token;
  float score;
  int32_t drawn;
};
static_assert(sizeof(Leader) == 16);
constexpr int32_t kNoToken = INT32_MAX;
constexpr Leader kNoLeader = {-std::numeric_limits<float>::infinity(), kNoToken,
                              -std::numeric_limits<float>::infinity(), kNoToken};

// How a row draws; the noise is that of (seed, the row's position, token). draws == 0: it does not, or not from all tokens.
struct RowDraw {
  uint64_t seed;
  float inverse;  // 1 / temperature
  int32_t draws;
};

}  // namespace pointcode
