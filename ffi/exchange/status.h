// Declares Status: the outcome of an exchange, free of any framework's types.
#ifndef FASTJAX_EXCHANGE_STATUS_H_
#define FASTJAX_EXCHANGE_STATUS_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace fastjax {

enum class Code : uint8_t { kOk, kInvalidArgument, kDeadlineExceeded, kUnavailable, kInternal };

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }
  static Status Ok() { return {}; }
  static Status Invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
  static Status Deadline(std::string message) { return {Code::kDeadlineExceeded, std::move(message)}; }
  static Status Unavailable(std::string message) { return {Code::kUnavailable, std::move(message)}; }
  static Status Internal(std::string message) { return {Code::kInternal, std::move(message)}; }
};

// "1.5 s", for errors.
inline std::string Seconds(int64_t ms) {
  return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

// Runs work() on behalf of all devices of a group: what it throws (memory is all that can run out) becomes their
// status, where an exception would reach one of them and leave the others waiting. Work that returns nothing ends well.
template <typename Work>
Status Guarded(Work work) {
  try {
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      return Status::Ok();
    } else {
      return work();
    }
  } catch (const std::exception& error) {
    return Status::Internal(std::string("fastjax: ") + error.what());
  }
}

// Called exactly once per device and operation.
using Completion = std::function<void(const Status&)>;

}  // namespace fastjax

#endif  // FASTJAX_EXCHANGE_STATUS_H_
