// Errors of the native part: one macro that says what was expected and what came.
#pragma once

#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace pointcode {

[[noreturn]] inline void fail(const std::string& message) { throw std::runtime_error(message); }

// Without streams: some toolchains link their own C++ library statically into the extension, and
// its streams clash with the one that torch has loaded.
template <typename Part>
void append_text(std::string& text, const Part& part) {
  if constexpr (std::is_convertible_v<Part, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else {
    static_assert(std::is_arithmetic_v<Part>);
    if constexpr (std::is_same_v<Part, bool>) {
      text += part ? "1" : "0";
    } else {
      char digits[64];
      text.append(digits, std::to_chars(digits, digits + sizeof(digits), part).ptr);
    }
  }
}

template <typename... Parts>
std::string join_text(const Parts&... parts) {
  std::string text;
  (append_text(text, parts), ...);
  return text;
}

}  // namespace pointcode

// CHECK_THAT(rows > 0, "a weight has ", rows, " rows"): throws std::runtime_error with the parts
// joined.
#define CHECK_THAT(condition, ...)                                            \
  do {                                                                        \
    if (!(condition)) ::pointcode::fail(::pointcode::join_text(__VA_ARGS__)); \
  } while (false)
