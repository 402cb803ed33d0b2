// The handlers of exchanges in CPU programs. What takes the form of a GPU's exchange is executed by emulated ones.
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "backends/registry.h"
#include "handlers/decode.h"
#include "handlers/emulated_calls.h"
#include "handlers/exchange_buffers.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/turns.h"

namespace fastjax::handlers {
namespace {

// Tells the turns of a call site which of its devices have failed elsewhere.
class TurnListener final : public FailureListener {
 public:
  void OnFailedLaunch(const std::shared_ptr<const FailedLaunch>& launch) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      recent_.Add(launch);
    }
    Turns::Get().OnFailed(this, *launch);
  }

  // Returns why a device has failed, or null.
  std::shared_ptr<const Status> Why(int64_t run_id, int32_t partition) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const FailedLaunch* const launch = recent_.Find(run_id);
    return launch == nullptr ? nullptr : launch->Why(partition);
  }

 private:
  std::mutex mutex_;
  RecentFailures recent_;
};

struct ExchangeSite {
  static ffi::TypeId id;
  static constexpr const char* kTypeName = "fastjax_exchange_site_v2";
  HandedOver handed_over;
  OperandList operands;
  std::shared_ptr<const CallSite> site;
  bool reverse = false;
  std::shared_ptr<fastjax::Exchange> exchange;
  std::shared_ptr<TurnListener> turns;        // where the exchange has a turn
  std::shared_ptr<FailedLaunches> launches;   // that it hears of
  std::unique_ptr<GpuExchangeSite> emulated;  // in place of all these
};

ffi::TypeId ExchangeSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

ffi::Error OpenOnCpus(const CallAttributes& attrs, ExchangeSite* state) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return site.error();
  std::shared_ptr<Backend> backend;
  if (Status found = FindBackend(**site, &backend); !found.ok()) return ToError(found);
  auto options = DecodeExchangeOptions(attrs, *site);
  if (!options.has_value()) return options.error();
  state->site = *site;
  state->reverse = options->reverse;
  state->exchange = backend->OpenExchange(*site, std::move(*options));
  if (!state->operands.Has(Operand::kToken)) return ffi::Error::Success();
  state->turns = std::make_shared<TurnListener>();
  state->launches = FailedLaunchesOf(**site, kAllProcesses);
  state->launches->Add(state->turns);
  return ffi::Error::Success();
}

template <bool kEmulates>
ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Instantiate(ffi::Dictionary dictionary) {
  return MakeSite<ExchangeSite>(DecodeExchangeCall(dictionary), [](const CallAttributes& attrs, ExchangeSite* state) {
    state->operands = attrs.operands;
    if (!kEmulates && !attrs.operands.Has(Operand::kStarts) && attrs.operands.Has(Operand::kPartition)) {
      return OpenOnCpus(attrs, state);
    }
    state->emulated = std::make_unique<GpuExchangeSite>();
    return OpenGpuExchange(attrs, state->emulated.get());
  });
}

// Begins an exchange in its turn, or refuses it then. The handler does not wait for that.
void BeginInTurn(const ffi::AnyBuffer& token, ExchangeSite* state, int64_t run_id, int32_t where,
                 const ExchangeArgs& args, const Status& refusal, const Completion& done) {
  Turns::Token number = 0;
  if (token.element_type() == ffi::DataType::U32 && token.size_bytes() == sizeof(number)) {
    std::memcpy(&number, token.untyped_data(), sizeof(number));
  }
  const auto run = [=](const Status& waited, const std::function<void()>& begun) {
    // A device has arrived when it is told of the end, which may be before Start returns.
    const Completion ended = [done, begun](const Status& status) {
      begun();
      done(status);
    };
    if (waited.ok() && refusal.ok()) {
      state->exchange->Start(run_id, where, args, ended);
    } else {
      state->exchange->FailGroup(run_id, where, refusal.ok() ? waited : refusal, ended);
    }
    begun();
  };
  const CallSite& site = *state->site;
  const auto failed = [turns = state->turns, run_id, where] { return turns->Why(run_id, where); };
  const bool taken =
      Turns::Get().Take(number, {state->turns.get(), run_id, where, site.channel, site.timeout_ms, run, failed});
  if (!taken) state->exchange->FailGroup(run_id, where, Status::Invalid("its token is of no start"), done);
}

// Begins an exchange. `done` is called once, whether it succeeds or fails.
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
  const Status refusal = fits ? Status::Ok() : UnexpectedOperands();
  if (buffers.Has(Operand::kToken)) {
    return BeginInTurn(buffers[Operand::kToken], state, run_id, where, args, refusal, done);
  }
  if (!fits) return state->exchange->FailGroup(run_id, where, refusal, std::move(done));
  state->exchange->Start(run_id, where, args, std::move(done));
}

ffi::Future Execute(ExchangeSite* state, ffi::RunId run, int32_t ordinal, ffi::RemainingArgs args,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  state->handed_over.Receive();
  const auto buffers = state->operands.Take(args, *result);
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
