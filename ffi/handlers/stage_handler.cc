#include <cstring>
#include <memory>

#include "handlers/decode.h"
#include "handlers/handlers.h"
#include "handlers/operands.h"
#include "handlers/staging.h"

namespace fastjax::handlers {
namespace {

struct StageSite {
  static ffi::TypeId id;
  HandedOver handed_over;
  std::shared_ptr<StagingPool> pool = std::make_shared<StagingPool>();
};

ffi::TypeId StageSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

ffi::ErrorOr<std::unique_ptr<StageSite>> Instantiate(ffi::Dictionary /*attrs*/) {
  auto site = std::make_unique<StageSite>();
  site->handed_over.Publish();
  return site;
}

ffi::Error Execute(const ExchangeBuffers& buffers, StageSite* site) {
  site->handed_over.Receive();
  const ffi::AnyBuffer& result = buffers.result;
  if (result.size_bytes() < kTicketBytes || result.size_bytes() != buffers.base.size_bytes()) {
    return ToError(UnexpectedOperands());
  }
  // XLA was asked to give result and base one buffer; it is free not to.
  if (result.untyped_data() != buffers.base.untyped_data()) {
    std::memcpy(result.untyped_data(), buffers.base.untyped_data(), result.size_bytes());
  }
  if (!buffers.table.has_value()) return ToError(UnexpectedOperands());
  StagedOperands* const staged = site->pool->Lend();
  if (buffers.indices.has_value() && buffers.factors.has_value()) {
    staged->Copy({buffers.source, buffers.input_offsets, buffers.send_sizes, buffers.output_offsets, buffers.recv_sizes,
                  *buffers.table, *buffers.indices, *buffers.factors});
  } else {
    staged->Copy({buffers.source, buffers.input_offsets, buffers.send_sizes, buffers.output_offsets, buffers.recv_sizes,
                  *buffers.table});
  }
  staged->WriteTicket(result.untyped_data());
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, Gathered<StageOperands>(Execute),
                       BindCall<StageOperands>(ffi::Ffi::Bind().Ctx<ffi::State<StageSite>>()));
XLA_FFI_DEFINE_HANDLER(kExecuteIndexed, Gathered<IndexedStageOperands>(Execute),
                       BindCall<IndexedStageOperands>(ffi::Ffi::Bind().Ctx<ffi::State<StageSite>>()));

constexpr const char* kTypeName = "fastjax_stage_site_v1";

}  // namespace

Bundle Stage() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<StageSite>(frame, kInstantiate, kTypeName); },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<StageSite>(frame, kExecute, kTypeName); }};
}

Bundle IndexedStage() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<StageSite>(frame, kInstantiate, kTypeName); },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<StageSite>(frame, kExecuteIndexed, kTypeName); }};
}

}  // namespace fastjax::handlers
