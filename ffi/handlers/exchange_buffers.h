// The operands of an exchange, whatever memory they are in.
#ifndef FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_
#define FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_

#include "exchange/backend.h"
#include "handlers/decode.h"

namespace fastjax::handlers {

using Table = ffi::BufferR1<ffi::DataType::S32>;

struct ExchangeBuffers {
  ffi::AnyBuffer source;
  ffi::AnyBuffer base;
  ffi::AnyBuffer input_offsets;
  ffi::AnyBuffer send_sizes;
  ffi::AnyBuffer output_offsets;
  ffi::AnyBuffer recv_sizes;
  const Table* table;  // null where the exchange plans itself
  ffi::AnyBuffer partition;
  ffi::AnyBuffer result;
};

// From shapes and addresses alone: nothing is read. False if they do not fit each other.
bool DecodeExchange(const ExchangeBuffers& buffers, const CallSite& site, ExchangeArgs* args);

// What an exchange is told by its attributes; `plans`: it plans itself.
ffi::ErrorOr<ExchangeOptions> DecodeExchangeOptions(const ffi::Dictionary& attrs,
                                                    const std::shared_ptr<const CallSite>& site, bool plans);

// State, run, rows, base and metadata: what all forms of an exchange begin with.
template <typename Binding>
auto BindExchange(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>();
}

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_
