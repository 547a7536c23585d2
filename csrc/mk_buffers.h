// Where the activations that SMs hand to each other lie: one block of device memory.
#pragma once

#include <cstddef>

#include "mk_params.h"

namespace pointcode::mk {

// Sets the activation pointers of `p` to places behind `base` and returns the bytes that they take.
// `widest_ffn`: most payloads of one row's hidden units; `max_splits`: attention splits at most.
// The sizes in `p` must be set; the buffers of the published orders are placed if `p.counted`.
size_t place_activations(Params& p, size_t widest_ffn, int max_splits, uint8_t* base);
// The widest row of hidden units over these layers.
size_t widest_ffn(const Params& p, const Layer* layers);

}  // namespace pointcode::mk
