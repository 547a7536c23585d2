#include "mk_buffers.h"

#include <algorithm>
#include <utility>

namespace pointcode::mk {
namespace {

constexpr size_t kTagged = 8;   // bytes of one tagged payload
constexpr size_t kAlign = 256;  // of every buffer

}  // namespace

size_t widest_ffn(const Params& p, const Layer* layers) {
  size_t widest = 1;
  for (int i = 0; i < p.n_layers; ++i) {
    const size_t slots = layers[i].flags & kLayerMoe ? p.top_k : 1;
    widest = std::max(widest, slots * layers[i].intermediate / 2);
  }
  return widest;
}

size_t place_activations(Params& p, size_t widest, int max_splits, uint8_t* base) {
  const auto hidden = static_cast<size_t>(p.hidden), slots = static_cast<size_t>(p.top_k);
  const size_t q = static_cast<size_t>(p.n_heads) * p.head_dim / 2,
               kv = static_cast<size_t>(p.n_kv_heads) * p.head_dim,
               part = static_cast<size_t>(p.n_kv_heads) * max_splits * kMaxGroup * (p.head_dim + 4);
  const size_t on = p.counted ? 1 : 0;
  const std::pair<uint8_t**, size_t> wanted[] = {// payloads a row
                                                 {&p.residual, hidden},
                                                 {&p.q, q},
                                                 {&p.k_new, kv},
                                                 {&p.v_new, kv},
                                                 {&p.router, std::max(p.n_experts, 1)},
                                                 {&p.part, part},
                                                 {&p.attn, q},
                                                 {&p.ffn, widest},
                                                 {&p.normed, on * hidden / 2},
                                                 {&p.o_out, on * hidden},
                                                 {&p.ffn_out, on * hidden},
                                                 {&p.topk, on * slots * 2},
                                                 {&p.route, on * kRouteWords},
                                                 {&p.moe_in, on * slots * hidden / 2},
                                                 {&p.moe_out, on * slots * hidden}};
  size_t total = 0;
  for (const auto& [pointer, payloads] : wanted) {
    *pointer = base + total;
    total += (payloads * kMaxRows * kTagged + kAlign) / kAlign * kAlign;
  }
  return total;
}

}  // namespace pointcode::mk

// For tests, which load it with ctypes.
POINTCODE_EXPORT size_t pointcode_mk_place(void* params, const void* layers, int max_splits,
                                           void* base) {
  using namespace pointcode::mk;
  auto& p = *static_cast<Params*>(params);
  return place_activations(p, widest_ffn(p, static_cast<const Layer*>(layers)), max_splits,
                           static_cast<uint8_t*>(base));
}
