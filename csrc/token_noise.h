// The counter-based random numbers of sampling, the same on the host and on the GPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define POINTCODE_HOST_DEVICE __host__ __device__
#else
#define POINTCODE_HOST_DEVICE
#endif

namespace pointcode {

// SplitMix64's finaliser (Steele, Lea and Flood 2014): spreads a counter over 64 bits.
POINTCODE_HOST_DEVICE constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

POINTCODE_HOST_DEVICE constexpr uint64_t noise_key(uint64_t seed, int32_t position) {
  return mix64(seed ^ mix64(static_cast<uint64_t>(static_cast<uint32_t>(position))));
}
POINTCODE_HOST_DEVICE constexpr float noise_of_key(uint64_t key, int32_t token) {
  const uint64_t bits = mix64(key ^ static_cast<uint64_t>(static_cast<uint32_t>(token)));
  return (static_cast<float>(bits >> 41) + 0.5f) * 0x1p-23f;
}

// The noise of a token, uniform on (0, 1) in steps of 2^-23, so that fp32 holds it exactly. It
// depends on nothing but (seed, position, token), hence the draw does not depend on the batch, on
// the order of a search, or on the device.
POINTCODE_HOST_DEVICE constexpr float token_noise(uint64_t seed, int32_t position, int32_t token) {
  return noise_of_key(noise_key(seed, position), token);
}

}  // namespace pointcode
