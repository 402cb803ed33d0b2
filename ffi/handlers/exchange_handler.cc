#include <cstring>
#include <memory>
#include <utility>

#include "backends/registry.h"
#include "handlers/decode.h"
#include "handlers/exchange_buffers.h"
#include "handlers/handlers.h"
#include "handlers/staging.h"

namespace fastjax::handlers {
namespace {

struct ExchangeSite {
  static ffi::TypeId id;
  HandedOver handed_over;
  std::shared_ptr<const CallSite> site;
  bool reverse = false;
  std::unique_ptr<fastjax::Exchange> exchange;
};

ffi::TypeId ExchangeSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Open(const CustomCall& call, const ffi::Dictionary& dictionary, bool plans,
                                                 bool indexed = false) {
  const auto attrs = DecodeAttributes(call, dictionary);
  if (!attrs.has_value()) return ffi::Unexpected(attrs.error());
  auto site = DecodeCallSite(*attrs);
  if (!site.has_value()) return ffi::Unexpected(site.error());
  std::shared_ptr<Backend> backend;
  if (Status found = FindBackend(**site, &backend); !found.ok()) return ffi::Unexpected(ToError(found));
  auto options = DecodeExchangeOptions(*attrs, *site, plans);
  if (!options.has_value()) return ffi::Unexpected(options.error());
  options->indexed = indexed;
  auto state = std::make_unique<ExchangeSite>();
  state->site = *site;
  state->reverse = options->reverse;
  state->exchange = backend->OpenExchange(*site, std::move(*options));
  state->handed_over.Publish();
  return state;
}

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Instantiate(ffi::Dictionary attrs) {
  return Open(GetContract().exchange, attrs, false);
}

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiateIndexed(ffi::Dictionary attrs) {
  return Open(GetContract().indexed_exchange, attrs, false, true);
}

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiateStaged(ffi::Dictionary attrs) {
  return Open(GetContract().staged_exchange, attrs, false);
}

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiateIndexedStaged(ffi::Dictionary attrs) {
  return Open(GetContract().indexed_staged_exchange, attrs, false, true);
}

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiatePlanning(ffi::Dictionary attrs) {
  return Open(GetContract().plan_exchange, attrs, true);
}

// Begins an exchange. `done` is called once, whether it succeeds or fails.
void Begin(const ExchangeBuffers& buffers, ExchangeSite* state, ffi::RunId run, Completion done) {
  state->handed_over.Receive();
  ExchangeArgs args;
  const int32_t where = buffers.partition.has_value() ? DecodePartition(*buffers.partition, *state->site) : -1;
  if (where < 0) return done(FailsAlone(*state->site, UnexpectedOperands()));
  const bool fits = DecodeExchange(buffers, *state->site, &args) &&
                    (!buffers.indices.has_value() || DecodeIndexed(buffers, state->reverse, &args));
  if (!fits) {
    return state->exchange->Refuse(run.run_id, where, UnexpectedOperands(), std::move(done));
  }
  // XLA was asked to give result and base one buffer; it is free not to.
  if (buffers.base.untyped_data() != args.destination) {
    std::memcpy(args.destination, buffers.base.untyped_data(), buffers.base.size_bytes());
  }
  state->exchange->Start(run.run_id, where, args, std::move(done));
}

ffi::Future Execute(const ExchangeBuffers& buffers, ExchangeSite* state, ffi::RunId run) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Begin(buffers, state, run, Completing(std::move(promise)));
  return future;
}

Status NotStaged(const CallSite& site, int32_t partition) {
  return Status::Internal(site.Prefix() + site.DeviceName(site.group_of[partition], site.position_of[partition]) +
                          " has no memory for copies of its operands, which chunks of a layer want.");
}

ffi::Future ExecuteStaged(const StagedExchangeBuffers& buffers, ExchangeSite* state, ffi::RunId run) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const bool has_id = buffers.base.size_bytes() >= sizeof(StagedId);
  StagedOperands* const staged = has_id ? StagedOperands::TakeById(buffers.base.untyped_data()) : nullptr;
  if (staged == nullptr) {
    const int32_t where = DecodePartition(buffers.partition, *state->site);
    const Status why = where < 0 ? UnexpectedOperands() : NotStaged(*state->site, where);
    if (where < 0) return Failed(ToError(FailsAlone(*state->site, why)));
    state->exchange->Refuse(run.run_id, where, why, Completing(std::move(promise)));
    return future;
  }
  const auto done = [staged, complete = Completing(std::move(promise))](const Status& status) {
    StagedCopies::Return(staged);
    complete(status);
  };
  Begin(staged->Buffers(buffers.result, buffers.base, buffers.partition), state, run, done);
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateIndexed, InstantiateIndexed, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateStaged, InstantiateStaged, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateIndexedStaged, InstantiateIndexedStaged, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiatePlanning, InstantiatePlanning, ffi::Ffi::BindInstantiate().Attrs());

auto BindContext() { return ffi::Ffi::Bind().Ctx<ffi::State<ExchangeSite>>().Ctx<ffi::RunId>(); }

XLA_FFI_DEFINE_HANDLER(kExecute, Gathered<ExchangeOperands>(Execute), BindCall<ExchangeOperands>(BindContext()));
XLA_FFI_DEFINE_HANDLER(kExecuteIndexed, Gathered<IndexedExchangeOperands>(Execute),
                       BindCall<IndexedExchangeOperands>(BindContext()));
XLA_FFI_DEFINE_HANDLER(kExecuteStaged, Gathered<StagedExchangeOperands>(ExecuteStaged),
                       BindCall<StagedExchangeOperands>(BindContext()));
XLA_FFI_DEFINE_HANDLER(kExecutePlanning, Gathered<PlanExchangeOperands>(Execute),
                       BindCall<PlanExchangeOperands>(BindContext()));

constexpr const char* kTypeName = "fastjax_exchange_site_v1";

}  // namespace

Bundle Exchange() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kInstantiate, kTypeName); },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kExecute, kTypeName); }};
}

Bundle IndexedExchange() {
  return {
      [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kInstantiateIndexed, kTypeName); },
      [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kExecuteIndexed, kTypeName); }};
}

Bundle StagedExchange() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kInstantiateStaged, kTypeName); },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kExecuteStaged, kTypeName); }};
}

Bundle IndexedStagedExchange() {
  return {[](XLA_FFI_CallFrame* frame) {
            return CallWithSiteType<ExchangeSite>(frame, kInstantiateIndexedStaged, kTypeName);
          },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kExecuteStaged, kTypeName); }};
}

Bundle PlanExchange() {
  return {
      [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kInstantiatePlanning, kTypeName); },
      [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<ExchangeSite>(frame, kExecutePlanning, kTypeName); }};
}

}  // namespace fastjax::handlers
