#include <cstring>
#include <memory>
#include <utility>

#include "handlers/decode.h"
#include "handlers/handlers.h"
#include "handlers/planning.h"
#include "handlers/transports.h"

namespace fastjax::handlers {
namespace {

struct ExchangeSite {
  static ffi::TypeId id;
  HandedOver handed_over;
  std::shared_ptr<const transport::CallSite> site;
  std::unique_ptr<transport::Exchange> exchange;
};

ffi::TypeId ExchangeSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Open(const ffi::Dictionary& attrs, bool plans) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return ffi::Unexpected(site.error());
  const auto transport = TransportOf(**site);
  if (!transport.has_value()) return ffi::Unexpected(transport.error());
  const auto reverse = attrs.get<bool>("reverse");
  const auto transposed = attrs.get<bool>("transposed_table");
  if (!reverse.has_value() || !transposed.has_value()) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: an exchange's attributes are incomplete"));
  }
  transport::ExchangeOptions options{*reverse, *transposed, nullptr, 0};
  if (plans) {
    auto planning = DecodePlanning(attrs, *site);
    if (!planning.has_value()) return ffi::Unexpected(planning.error());
    options.plan = std::move(planning->function);
    options.table_words = planning->table_words;
  }
  auto state = std::make_unique<ExchangeSite>();
  state->site = *site;
  state->exchange = (*transport)->OpenExchange(*site, std::move(options));
  state->handed_over.Publish();
  return state;
}

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Instantiate(ffi::Dictionary attrs) { return Open(attrs, false); }

ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiatePlanning(ffi::Dictionary attrs) { return Open(attrs, true); }

using Table = ffi::BufferR1<ffi::DataType::S32>;

ffi::Future Start(ExchangeSite* state, ffi::RunId run, ffi::AnyBuffer source, ffi::AnyBuffer base,
                  ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes, ffi::AnyBuffer output_offsets,
                  ffi::AnyBuffer recv_sizes, const Table* table, ffi::AnyBuffer partition,
                  ffi::Result<ffi::AnyBuffer> result) {
  state->handed_over.Receive();
  const auto in = DecodeInts(input_offsets);
  const auto send = DecodeInts(send_sizes);
  const auto out = DecodeInts(output_offsets);
  const auto recv = DecodeInts(recv_sizes);
  const int32_t where = DecodePartition(partition, *state->site);
  if (!in || !send || !out || !recv || in->size != send->size || out->size != send->size || recv->size != send->size ||
      send->size % state->site->group_size != 0 || where < 0 || source.dimensions().size() == 0 ||
      result->dimensions().size() == 0 || RowBytes(source) != RowBytes(*result)) {
    return Failed(ffi::Error::InvalidArgument(state->site->Prefix() + "unexpected operands"));
  }
  // XLA was asked to give result and base one buffer; it is free not to.
  if (base.untyped_data() != result->untyped_data()) {
    std::memcpy(result->untyped_data(), base.untyped_data(), base.size_bytes());
  }
  transport::ExchangeArgs args;
  args.source = static_cast<const std::byte*>(source.untyped_data());
  args.source_rows = source.dimensions().front();
  args.destination = static_cast<std::byte*>(result->untyped_data());
  args.destination_rows = result->dimensions().front();
  args.row_bytes = RowBytes(source);
  args.element = DecodeElement(source.element_type());
  args.input_offsets = *in;
  args.send_sizes = *send;
  args.output_offsets = *out;
  args.recv_sizes = *recv;
  if (table != nullptr) {
    args.table = table->typed_data();
    args.table_words = static_cast<int64_t>(table->element_count());
  }
  ffi::Promise promise;
  ffi::Future future(promise);
  state->exchange->Start(run.run_id, where, args, Completing(std::move(promise)));
  return future;
}

ffi::Future Execute(ExchangeSite* state, ffi::RunId run, ffi::AnyBuffer source, ffi::AnyBuffer base,
                    ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes, ffi::AnyBuffer output_offsets,
                    ffi::AnyBuffer recv_sizes, Table table, ffi::AnyBuffer partition,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
  return Start(state, run, source, base, input_offsets, send_sizes, output_offsets, recv_sizes, &table, partition,
               result);
}

ffi::Future ExecutePlanning(ExchangeSite* state, ffi::RunId run, ffi::AnyBuffer source, ffi::AnyBuffer base,
                            ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes, ffi::AnyBuffer output_offsets,
                            ffi::AnyBuffer recv_sizes, ffi::AnyBuffer partition, ffi::Result<ffi::AnyBuffer> result,
                            ffi::Dictionary) {
  return Start(state, run, source, base, input_offsets, send_sizes, output_offsets, recv_sizes, nullptr, partition,
               result);
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiatePlanning, InstantiatePlanning, ffi::Ffi::BindInstantiate().Attrs());

// Site, run, rows, base and metadata: what both forms begin with.
auto BindOperands() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<ExchangeSite>>()
      .Ctx<ffi::RunId>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>();
}

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       BindOperands().Arg<Table>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecutePlanning, ExecutePlanning,
                       BindOperands().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attrs());

constexpr const char* kTypeName = "fastjax_exchange_site_v1";

}  // namespace

XLA_FFI_Error* ExchangeInstantiate(XLA_FFI_CallFrame* frame) {
  return CallWithSiteType<ExchangeSite>(frame, kInstantiate, kTypeName);
}

XLA_FFI_Error* ExchangeExecute(XLA_FFI_CallFrame* frame) {
  return CallWithSiteType<ExchangeSite>(frame, kExecute, kTypeName);
}

XLA_FFI_Error* PlanExchangeInstantiate(XLA_FFI_CallFrame* frame) {
  return CallWithSiteType<ExchangeSite>(frame, kInstantiatePlanning, kTypeName);
}

XLA_FFI_Error* PlanExchangeExecute(XLA_FFI_CallFrame* frame) {
  return CallWithSiteType<ExchangeSite>(frame, kExecutePlanning, kTypeName);
}

}  // namespace fastjax::handlers
