// Declares how the operands of an exchange are decoded, whatever memory they are in.
#ifndef FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_
#define FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_

#include <memory>

#include "exchange/backend.h"
#include "handlers/decode.h"
#include "handlers/operands.h"

namespace fastjax::handlers {

// Fills `args` from shapes and addresses alone, and reads no operand. False if the shapes do not fit each other.
bool DecodeExchange(const ExchangeBuffers& buffers, const CallSite& site, ExchangeArgs* args);

// Adds indices and factors of an indexed exchange. Its slices are ranges of indices, so operand space has as many rows
// as there are indices. In reverse, rows are summed, and the result may have a wider type. On GPUs, indices
// stay on the device. False if shapes do not fit.
bool DecodeIndexed(const ExchangeBuffers& buffers, bool reverse, ExchangeArgs* args);

// Returns the settings of an exchange, from its attributes. `plans`: the exchange plans itself.
ffi::ErrorOr<ExchangeOptions> DecodeExchangeOptions(const CallAttributes& attrs,
                                                    const std::shared_ptr<const CallSite>& site, bool plans);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_
