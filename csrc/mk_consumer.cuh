// The walk of the eight consumer warps over their SM's tasks, in the lean order.
#pragma once

#include "mk_attention.cuh"
#include "mk_route.cuh"

namespace pointcode::mk {

template <int NB, bool kChains>
struct Consumer : ConsumerAttention<NB, kChains> {
  using Core = ConsumerCore<NB>;
  using Core::normed_layer;
  using Core::ordinal;
  using Core::p;
  using Core::w;

  using ConsumerAttention<NB, kChains>::ConsumerAttention;

  __device__ __forceinline__ void loop(int n_tasks) {
    DescriptorReader<NB> reader;
    int routed = -1;
#pragma unroll 1
    while (reader.i < static_cast<uint32_t>(n_tasks)) {
      const TaskDescriptor& d = reader.open(p);
      ordinal = d.ordinal;
      if ((d.flags & kFlagFusedNorm) && normed_layer != d.layer) {
        stamp(p, 0, d.layer);
        this->norm(d.layer);
        stamp(p, 1, d.layer);
      }
      const Opcode op = static_cast<Opcode>(d.opcode);
      const bool routes =
          d.flags & kFlagFusedTopK || (op == Opcode::kAttnDecode && Core::f().routes[d.layer]);
      if (routes && routed != d.layer) {
        routed = d.layer, Core::routed_layers++;
        if (w < p.n_rows) choose<NB>(p, ordinal, d.layer, w);
        __syncwarp();
        if (Core::lane == 0) mbar_arrive(&Core::f().chosen_full);
      }
      if (op == Opcode::kAttnDecode)
        this->attention(d);
      else if (d.flags & kFlagFusedNorm)
        this->normed_gemm(d);
      else if (op == Opcode::kMoeDownDrain)
        this->template fetched_gemm<true>(d, p.layers[d.layer]);
      else if (op != Opcode::kAttnCombine)
        this->template fetched_gemm<false>(d, p.layers[d.layer]);
      stamp(p,
            op == Opcode::kAttnDecode          ? 3
            : op == Opcode::kQkvProj           ? 2
            : op == Opcode::kMoeUpGateActDrain ? 4
            : op == Opcode::kOProj             ? 6
                                               : 7,
            d.layer);
      reader.close();
    }
  }
};

}  // namespace pointcode::mk
