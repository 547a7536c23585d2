// Errors of the native part: one macro that says what was expected and what came.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace pointcode {

[[noreturn]] inline void fail(const std::string& message) { throw std::runtime_error(message); }

template <typename... Parts>
std::string join_text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace pointcode

// CHECK_THAT(rows > 0, "a weight has ", rows, " rows"): throws std::runtime_error with the parts
// joined.
#define CHECK_THAT(condition, ...)                                            \
  do {                                                                        \
    if (!(condition)) ::pointcode::fail(::pointcode::join_text(__VA_ARGS__)); \
  } while (false)
