// The handlers of exchanges in CPU programs. What takes the form of a GPU's exchange is executed by emulated ones.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "backends/registry.h"
#include "handlers/decode.h"
#include "handlers/emulated_calls.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/turns.h"

namespace fastjax::handlers {
namespace {

struct ExchangeSite : SiteState {
  inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kTypeName = "fastjax_exchange_site_v2";
  std::shared_ptr<const CallSite> site;
  bool reverse = false;
  std::shared_ptr<fastjax::Exchange> exchange;
  std::unique_ptr<GpuExchangeSite> emulated;  // in place of all these
};

ffi::Error OpenOnCpus(const CallAttributes& attrs, ExchangeSite* state) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return site.error();
  Backend backend;
  if (Status found = FindBackend(**site, &backend); !found.ok()) return ToError(found);
  auto options = DecodeExchangeOptions(attrs, *site);
  if (!options.has_value()) return options.error();
  state->site = *site;
  state->reverse = options->reverse;
  state->exchange = backend.OpenExchange(*site, std::move(*options));
  return ffi::Error::Success();
}

template <bool kEmulates>
ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Instantiate(ffi::Dictionary dictionary) {
  return MakeSite<ExchangeSite>(DecodeExchangeCall(dictionary), [](const CallAttributes& attrs, ExchangeSite* state) {
    if (!kEmulates && !attrs.operands.Has(Operand::kStarts) && attrs.operands.Has(Operand::kPartition)) {
      return OpenOnCpus(attrs, state);
    }
    state->emulated = std::make_unique<GpuExchangeSite>();
    return OpenGpuExchange(attrs, state->emulated.get());
  });
}

// A fraction of the time after which the devices that do not wait give up.
std::chrono::milliseconds PatienceOf(const CallSite& site) {
  return std::chrono::milliseconds(std::min<int64_t>(1000, site.timeout_ms / 4));
}

bool DecodeToken(const ffi::AnyBuffer& token, Turns::Token* number) {
  if (token.element_type() != ffi::DataType::U32 || token.size_bytes() != sizeof(*number)) return false;
  std::memcpy(number, token.untyped_data(), sizeof(*number));
  return true;
}

// Begins an exchange, in its turn if it has one; the handler does not wait for that. `done` is called once, whether the
// exchange succeeds or fails.
void Begin(const Buffers& buffers, ExchangeSite* state, int64_t run_id, Completion done) {
  ExchangeArgs args;
  const int32_t where = DecodePartition(buffers[Operand::kPartition], *state->site);
  if (where < 0) return done(FailsAlone(*state->site, UnexpectedOperands()));
  const bool fits = DecodeExchange(buffers, *state->site, state->reverse, &args);
  // XLA was asked to give result and base one buffer; it is free not to.
  const ffi::AnyBuffer& base = buffers[Operand::kBase];
  if (fits && base.untyped_data() != args.destination) {
    std::memcpy(args.destination, base.untyped_data(), base.size_bytes());
  }
  fastjax::Exchange& exchange = *state->exchange;
  const auto start = [=, &exchange](Completion ended) {
    if (fits) return exchange.Start(run_id, where, args, std::move(ended));
    exchange.FailGroup(run_id, where, UnexpectedOperands(), std::move(ended));
  };
  if (!buffers.Has(Operand::kToken)) return start(std::move(done));
  const auto run = [=](const std::function<void()>& begun) {
    // A device has arrived when it is told of the end, which may be before the start returns.
    start([=](const Status& status) {
      begun();
      done(status);
    });
    begun();
  };
  Turns::Token token = 0;
  if (DecodeToken(buffers[Operand::kToken], &token) &&
      Turns::Get().Take(token, {state->site->channel, where, PatienceOf(*state->site), run})) {
    return;
  }
  exchange.FailGroup(run_id, where, Status::Invalid("its token is of no start"), std::move(done));
}

ffi::Future Execute(ExchangeSite* state, ffi::RunId run, int32_t ordinal, ffi::RemainingArgs args,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  const auto buffers = state->Take(args, *result);
  if (!buffers.has_value()) return Failed(ToError(UnexpectedOperands()));
  if (state->emulated != nullptr) return RunEmulated(state->emulated.get(), run, ordinal, *buffers);
  ffi::Promise promise;
  ffi::Future future(promise);
  Begin(*buffers, state, run.run_id, Completing(std::move(promise)));
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate<false>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateEmulated, Instantiate<true>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<ExchangeSite>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());

}  // namespace

Bundle Exchange() { return BundleOf<ExchangeSite, kInstantiate, kExecute>(); }
Bundle EmulatedExchange() { return BundleOf<ExchangeSite, kInstantiateEmulated, kExecute>(); }

}  // namespace fastjax::handlers
