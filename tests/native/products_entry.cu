// What tests/native/test_packed_products.py calls of csrc/prefill_gemm.cu on the emulated device.
#include "prefill_gemm.h"

extern "C" int run_products(const pointcode::prefill::Products* products, int cluster, int n_sms) {
  return pointcode::prefill::launch_products(*products, cluster, n_sms, nullptr);
}

extern "C" int run_gather(const pointcode::prefill::Gather* gather) {
  return pointcode::prefill::launch_gather(*gather, nullptr);
}
