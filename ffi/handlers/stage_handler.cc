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
  StagedCopies copies;
};

ffi::TypeId StageSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

// The attributes are not read. They make two calls of the same operands differ, which XLA would merge otherwise.
ffi::ErrorOr<std::unique_ptr<StageSite>> Instantiate(ffi::Dictionary /*attrs*/) {
  auto site = std::make_unique<StageSite>();
  site->handed_over.Publish();
  return site;
}

bool CopyAll(const ExchangeBuffers& from, StagedOperands* to) {
  if (!from.table.has_value()) return false;
  if (!from.indices.has_value() || !from.factors.has_value()) {
    return to->Copy(
        {from.source, from.input_offsets, from.send_sizes, from.output_offsets, from.recv_sizes, *from.table});
  }
  return to->Copy({from.source, from.input_offsets, from.send_sizes, from.output_offsets, from.recv_sizes, *from.table,
                   *from.indices, *from.factors});
}

// If operands cannot be staged, the call that exchanges fails, since it can tell the other devices.
ffi::Error Execute(const ExchangeBuffers& buffers, StageSite* site) {
  site->handed_over.Receive();
  const ffi::AnyBuffer& result = buffers.result;
  if (result.size_bytes() < sizeof(StagedId) || result.size_bytes() != buffers.base.size_bytes()) {
    return ToError(UnexpectedOperands());
  }
  // XLA was asked to give result and base one buffer; it is free not to.
  if (result.untyped_data() != buffers.base.untyped_data()) {
    std::memcpy(result.untyped_data(), buffers.base.untyped_data(), result.size_bytes());
  }
  StagedOperands* staged = nullptr;
  const Status kept = Guarded([&] {
    staged = site->copies.Take();
    if (!CopyAll(buffers, staged)) return UnexpectedOperands();
    staged->WriteId(result.untyped_data());
    return Status::Ok();
  });
  if (kept.ok()) return ffi::Error::Success();
  if (staged != nullptr) StagedCopies::Return(staged);
  StagedOperands::WriteNoId(result.untyped_data());
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
