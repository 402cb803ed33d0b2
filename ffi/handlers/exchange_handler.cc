#include <cstring>
#include <memory>
#include <utility>

#include "backends/registry.h"
#include "handlers/decode.h"
#include "handlers/exchange_buffers.h"
#include "handlers/handlers.h"

namespace fastjax::handlers {
namespace {

struct ExchangeSite {
  static ffi::TypeId id;
  HandedOver handed_over;
  std::shared_ptr<const CallSite> site;
  std::unique_ptr<fastjax::Exchange> exchange;
};

ffi::TypeId ExchangeSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Open(const ffi::Dictionary& attrs, bool plans) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return ffi::Unexpected(site.error());
  std::shared_ptr<Transport> transport;
  if (Status found = FindTransport(**site, &transport); !found.ok()) return ffi::Unexpected(ToError(found));
  auto options = DecodeExchangeOptions(attrs, *site, plans);
  if (!options.has_value()) return ffi::Unexpected(options.error());
  auto state = std::make_unique<ExchangeSite>();
  state->site = *site;
  state->exchange = transport->OpenExchange(*site, std::move(*options));
  state->handed_over.Publish();
  return state;
}

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Instantiate(ffi::Dictionary attrs) { return Open(attrs, false); }

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiatePlanning(ffi::Dictionary attrs) { return Open(attrs, true); }

ffi::Future Start(ExchangeSite* state, ffi::RunId run, const ExchangeBuffers& buffers) {
  state->handed_over.Receive();
  ExchangeArgs args;
  const int32_t where = DecodePartition(buffers.partition, *state->site);
  if (where < 0) return Failed(ToError(FailsAlone(*state->site, UnexpectedOperands())));
  ffi::Promise promise;
  ffi::Future future(promise);
  if (!DecodeExchange(buffers, *state->site, &args)) {
    state->exchange->Refuse(run.run_id, where, UnexpectedOperands(), Completing(std::move(promise)));
    return future;
  }
  // XLA was asked to give result and base one buffer; it is free not to.
  if (buffers.base.untyped_data() != args.destination) {
    std::memcpy(args.destination, buffers.base.untyped_data(), buffers.base.size_bytes());
  }
  state->exchange->Start(run.run_id, where, args, Completing(std::move(promise)));
  return future;
}

ffi::Future Execute(ExchangeSite* state, ffi::RunId run, ffi::AnyBuffer source, ffi::AnyBuffer base,
                    ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes, ffi::AnyBuffer output_offsets,
                    ffi::AnyBuffer recv_sizes, Table table, ffi::AnyBuffer partition,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
  return Start(state, run,
               {source, base, input_offsets, send_sizes, output_offsets, recv_sizes, &table, partition, *result});
}

ffi::Future ExecutePlanning(ExchangeSite* state, ffi::RunId run, ffi::AnyBuffer source, ffi::AnyBuffer base,
                            ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes, ffi::AnyBuffer output_offsets,
                            ffi::AnyBuffer recv_sizes, ffi::AnyBuffer partition, ffi::Result<ffi::AnyBuffer> result,
                            ffi::Dictionary) {
  return Start(state, run,
               {source, base, input_offsets, send_sizes, output_offsets, recv_sizes, nullptr, partition, *result});
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiatePlanning, InstantiatePlanning, ffi::Ffi::BindInstantiate().Attrs());

auto BindOperands() { return BindExchange(ffi::Ffi::Bind().Ctx<ffi::State<ExchangeSite>>().Ctx<ffi::RunId>()); }

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       BindOperands().Arg<Table>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecutePlanning, ExecutePlanning,
                       BindOperands().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attrs());

constexpr const char* kTypeName = "fastjax_exchange_site_v1";

}  // namespace

Bundle Exchange() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kInstantiate, kTypeName); },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kExecute, kTypeName); }};
}

Bundle PlanExchange() {
  return {
      [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kInstantiatePlanning, kTypeName); },
      [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kExecutePlanning, kTypeName); }};
}

}  // namespace fastjax::handlers
