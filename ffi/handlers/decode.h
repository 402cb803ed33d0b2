// Declares conversions from XLA's types to those of the other folders, whatever memory operands are in.
#ifndef FASTJAX_HANDLERS_DECODE_H_
#define FASTJAX_HANDLERS_DECODE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "exchange/status.h"
#include "handlers/contract.h"
#include "handlers/handlers.h"
#include "planner/topology.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {

// Returns the devices that take part, from the attributes that every call site has.
ffi::ErrorOr<std::shared_ptr<const CallSite>> DecodeCallSite(const CallAttributes& attrs);

// What a call site that plans needs.
struct Planning {
  PlanFunction plan;  // may be called by several threads at once
  int64_t table_words = 0;
};

ffi::ErrorOr<planner::Topology> DecodeTopology(const CallAttributes& attrs);
ffi::ErrorOr<Planning> DecodePlanning(const CallAttributes& attrs, const std::shared_ptr<const CallSite>& site);

// Whether a buffer is of the type of stablehlo.partition_id.
bool IsPartition(const ffi::AnyBuffer& buffer);
// The value of that, or -1 when it is not one of this call site's.
int32_t CheckedPartition(uint32_t value, const CallSite& site);
// The same of an operand in host memory.
int32_t DecodePartition(const ffi::AnyBuffer& partition, const CallSite& site);

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

ffi::Error ToError(const Status& status);

Status UnexpectedOperands();
// Returns the error of a device that cannot take part and cannot tell the others, since it does not know its position.
Status FailsAlone(const CallSite& site, const Status& why);

// Completes `promise` from whatever thread it is called on.
Completion Completing(ffi::Promise promise);

// Returns a future that has failed already. Handlers that return ffi::Future report wrong arguments by it.
ffi::Future Failed(ffi::Error error);

// The state that every call site has. XLA hands it from the thread that compiles to those that execute, in a way that
// the thread sanitizer does not see. Publish and Receive tell the sanitizer; they cost a plain load.
struct SiteState {
  void Publish() { published.store(true, std::memory_order_release); }
  void Receive() const { static_cast<void>(published.load(std::memory_order_acquire)); }
  // Returns the buffers of a call, or none where XLA passes more operands than have been named, or fewer.
  std::optional<Buffers> Take(const ffi::RemainingArgs& args, const ffi::AnyBuffer& result) const {
    Receive();
    return operands.Take(args, result);
  }

  OperandList operands;
  std::atomic<bool> published{false};
};

XLA_FFI_Error* ExhaustedError(const XLA_FFI_Api* api, const char* what);

// Named, so that the thread sanitizer's suppressions can name it.
template <typename Site>
void DeleteSite(void* site) {
  delete static_cast<Site*>(site);
}

// Makes the state of a call site. `open` fills in what else it has.
template <typename Site, typename Open>
ffi::ErrorOr<std::unique_ptr<Site>> MakeSite(const ffi::ErrorOr<CallAttributes>& attrs, const Open& open) {
  if (!attrs.has_value()) return ffi::Unexpected(attrs.error());
  auto site = std::make_unique<Site>();
  site->operands = attrs->operands;
  if (ffi::Error error = open(*attrs, site.get()); error.failure()) return ffi::Unexpected(std::move(error));
  site->Publish();
  return site;
}

// No exception may pass through XLA. Only a lack of memory or threads can throw here.
inline XLA_FFI_Error* CallGuarded(XLA_FFI_CallFrame* frame, XLA_FFI_Handler* handler) {
  try {
    return handler(frame);
  } catch (const std::exception& error) {
    return ExhaustedError(frame->api, error.what());
  }
}

// Registers the state type of a call site with the XLA that calls, the first time it calls. Doing it here rather
// than from Python spares users an order of initialisation that is easily got wrong: types must be known before
// the handlers that return them, and registering one from Python would start the backend on import.
template <typename Site>
XLA_FFI_Error* CallWithSiteType(XLA_FFI_CallFrame* frame, XLA_FFI_Handler* handler) {
  static constexpr XLA_FFI_TypeInfo kInfo{XLA_FFI_TypeInfo_STRUCT_SIZE, nullptr, DeleteSite<Site>};
  static XLA_FFI_Error* const failure = ffi::Ffi::RegisterTypeId(frame->api, Site::kTypeName, &Site::id, kInfo);
  if (failure != nullptr) return failure;
  return CallGuarded(frame, handler);
}

template <typename Site, XLA_FFI_Handler* instantiate, XLA_FFI_Handler* execute>
Target TargetOf(const CustomCall& call) {
  return {call.target, [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<Site>(frame, instantiate); },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<Site>(frame, execute); }};
}

// Of a call without state.
template <XLA_FFI_Handler* execute>
Target TargetOf(const CustomCall& call) {
  return {call.target, nullptr, [](XLA_FFI_CallFrame* frame) { return CallGuarded(frame, execute); }};
}

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_DECODE_H_
