#include "cpu_dot.h"

#include "check.h"

namespace pointcode {
namespace {

constexpr FormatInfo kFormats[kNumFormats] = {
    {1, 4, "F32"},      {1, 2, "F16"},      {1, 2, "BF16"},     {32, 34, "Q8_0"},
    {32, 18, "Q4_0"},   {32, 20, "Q4_1"},   {32, 22, "Q5_0"},   {32, 24, "Q5_1"},
    {256, 144, "Q4_K"}, {256, 176, "Q5_K"}, {256, 210, "Q6_K"},
};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_vnni() { return false; }
#endif

}  // namespace

const FormatInfo& format_info(WeightFormat format) {
  const auto index = static_cast<int32_t>(format);
  CHECK_THAT(index >= 0 && index < kNumFormats, "unknown weight format ", index);
  return kFormats[index];
}

int64_t packed_row_bytes(WeightFormat format, int32_t cols) {
  const FormatInfo& info = format_info(format);
  CHECK_THAT(cols > 0 && cols % info.block == 0, info.name, " needs a multiple of ", info.block,
             " columns, got ", cols);
  return static_cast<int64_t>(cols) / info.block * info.block_bytes;
}

Isa best_isa() {
  if (has_vnni()) return Isa::kAvx512Vnni;
  if (has_avx512()) return Isa::kAvx512;
  return has_avx2() ? Isa::kAvx2 : Isa::kPortable;
}

const DotTable& dot_table(Isa isa) {
  CHECK_THAT(static_cast<int>(isa) <= static_cast<int>(best_isa()),
             "this CPU has no support for instruction set ", static_cast<int>(isa));
  if (isa == Isa::kAvx512Vnni) return dot_table_avx512_vnni();
  if (isa == Isa::kAvx512) return dot_table_avx512();
  return isa == Isa::kAvx2 ? dot_table_avx2() : dot_table_portable();
}

}  // namespace pointcode
