// Outcome of an exchange, free of any framework's types.
#ifndef FASTJAX_TRANSPORT_STATUS_H_
#define FASTJAX_TRANSPORT_STATUS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace fastjax::transport {

enum class Code : uint8_t { kOk, kInvalidArgument, kDeadlineExceeded, kInternal };

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }
  static Status Ok() { return {}; }
  static Status Invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
  static Status Deadline(std::string message) { return {Code::kDeadlineExceeded, std::move(message)}; }
  static Status Internal(std::string message) { return {Code::kInternal, std::move(message)}; }
};

// Called exactly once per device and operation.
using Completion = std::function<void(const Status&)>;

}  // namespace fastjax::transport

#endif  // FASTJAX_TRANSPORT_STATUS_H_
