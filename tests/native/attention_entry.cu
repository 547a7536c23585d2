// What tests/native/test_prefill_attention.py calls of csrc/prefill_attention.cu on the emulated device.
#include "prefill_attention.h"

extern "C" int run_attention(const pointcode::prefill::Attention* attention, int n_sms) {
  return pointcode::prefill::launch_attention(*attention, n_sms, nullptr);
}
