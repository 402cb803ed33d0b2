// Declares how the operands of exchanges and plans are decoded, whatever memory they are in.
#ifndef FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_
#define FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_

#include <memory>

#include "exchange/backend.h"
#include "handlers/decode.h"

namespace fastjax::handlers {

// Fills `args` from shapes and addresses alone, and reads no operand. False if types or shapes do not fit each other.
// Where one device has all ranks, they are those of rank 0.
bool DecodeExchange(const Buffers& buffers, const CallSite& site, bool reverse, ExchangeArgs* args);
// Does the same for a plan whose table has so many words, or for sizes that are only gathered (0).
bool DecodeCounts(const Buffers& buffers, const CallSite& site, int64_t table_words, CountsArgs* args);

// Reads the attributes of a call site that exchanges. An error if operands are named that do not go together.
ffi::ErrorOr<CallAttributes> DecodeExchangeCall(const ffi::Dictionary& dictionary);

// Returns the settings of an exchange, which plans itself if it has no table.
ffi::ErrorOr<ExchangeOptions> DecodeExchangeOptions(const CallAttributes& attrs,
                                                    const std::shared_ptr<const CallSite>& site);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_EXCHANGE_BUFFERS_H_
