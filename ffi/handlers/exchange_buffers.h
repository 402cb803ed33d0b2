// The operands of an exchange, whatever memory they are in.
#ifndef FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_
#define FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_

#include <memory>

#include "exchange/backend.h"
#include "handlers/decode.h"
#include "handlers/operands.h"

namespace fastjax::handlers {

// From shapes and addresses alone: nothing is read. False if they do not fit each other.
bool DecodeExchange(const ExchangeBuffers& buffers, const CallSite& site, ExchangeArgs* args);

// Reads what else an indexed exchange has. Its slices are of indices: operand space has as many rows as there are. In
// reverse, rows are summed, and the result may be of a wider type. False if they do not fit each other.
bool DecodeIndexed(const ExchangeBuffers& buffers, bool reverse, ExchangeArgs* args);

// What an exchange is told by its attributes; `plans`: it plans itself.
ffi::ErrorOr<ExchangeOptions> DecodeExchangeOptions(const CallAttributes& attrs,
                                                    const std::shared_ptr<const CallSite>& site, bool plans);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_
