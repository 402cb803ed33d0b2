// The handlers of CPU programs: of plans, and of gathering counts, with a plan or alone; of exchanges; and of the calls
// between which a started exchange runs. Emulated GPUs execute what takes the form of a GPU's call, or has all ranks on
// one device.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "backends/registry.h"
#include "handlers/decode.h"
#include "handlers/emulated_calls.h"
#include "handlers/handlers.h"
#include "rendezvous/turns.h"
#include "runtime/completer.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {
namespace {

// The state of a call site at which devices meet: its own, or in place of all that, that of emulated GPUs.
template <typename EmulatedSite>
struct CpuSite : SiteState {
  std::shared_ptr<const CallSite> site;
  std::unique_ptr<EmulatedSite> emulated;
};

struct PlanSite : CpuSite<GpuPlanSite> {
  inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kTypeName = "fastjax_plan_site_v2";
  int64_t table_words = 0;
  std::shared_ptr<Counts> counts;
};

struct ExchangeSite : CpuSite<GpuExchangeSite> {
  inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kTypeName = "fastjax_exchange_site_v2";
  bool reverse = false;
  std::shared_ptr<fastjax::Exchange> exchange;
};

struct StartSite : SiteState {
  StartSite() = default;
  StartSite(const StartSite&) = delete;
  StartSite& operator=(const StartSite&) = delete;
  ~StartSite() { Turns::Get().Forget(this); }

  inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kTypeName = "fastjax_start_site_v2";
};

// ---- what is done once for a call site

ffi::Error FindSite(const CallAttributes& attrs, std::shared_ptr<const CallSite>* site, Backend* backend) {
  auto decoded = DecodeCallSite(attrs);
  if (!decoded.has_value()) return decoded.error();
  *site = *decoded;
  return ToError(FindBackend(**site, backend));
}

// Whether the experts whose choices are counted, if there are any, divide over the devices.
bool CanCount(const CallSite& site) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto fits = [](int64_t value) { return value >= 0 && value <= kMost; };
  return fits(site.experts) && fits(site.servers) && site.experts % site.group_size == 0;
}

ffi::Error OpenPlan(const CallAttributes& attrs, PlanSite* state) {
  Backend backend;
  if (ffi::Error error = FindSite(attrs, &state->site, &backend); error.failure()) return error;
  Planning planning;
  if (attrs.scheduler >= 0) {
    auto decoded = DecodePlanning(attrs, state->site);
    if (!decoded.has_value()) return decoded.error();
    planning = std::move(*decoded);
  } else if (!CanCount(*state->site)) {
    return ffi::Error::InvalidArgument("fastjax: the counts of servers and of experts disagree with the devices");
  }
  state->table_words = planning.table_words;
  state->counts = backend.OpenCounts(state->site, std::move(planning.plan));
  return ffi::Error::Success();
}

ffi::Error OpenExchange(const CallAttributes& attrs, ExchangeSite* state) {
  Backend backend;
  if (ffi::Error error = FindSite(attrs, &state->site, &backend); error.failure()) return error;
  auto options = DecodeExchangeOptions(attrs, state->site);
  if (!options.has_value()) return options.error();
  state->reverse = options->reverse;
  state->exchange = backend.OpenExchange(state->site, std::move(*options));
  return ffi::Error::Success();
}

template <bool kEmulates>
ffi::ErrorOr<std::unique_ptr<PlanSite>> InstantiatePlan(ffi::Dictionary dictionary) {
  const auto decoded = DecodeAttributes(GetContract().plan, dictionary);
  return MakeSite<PlanSite>(decoded, [](const CallAttributes& attrs, PlanSite* state) {
    // Emulated GPUs do not gather.
    const bool on_cpus = !kEmulates || attrs.scheduler < 0;
    if (on_cpus && attrs.operands.Has(Operand::kPartition)) return OpenPlan(attrs, state);
    state->emulated = std::make_unique<GpuPlanSite>();
    return OpenGpuPlan(attrs, state->emulated.get());
  });
}

template <bool kEmulates>
ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiateExchange(ffi::Dictionary dictionary) {
  return MakeSite<ExchangeSite>(DecodeExchangeCall(dictionary), [](const CallAttributes& attrs, ExchangeSite* state) {
    if (!kEmulates && !attrs.operands.Has(Operand::kStarts) && attrs.operands.Has(Operand::kPartition)) {
      return OpenExchange(attrs, state);
    }
    state->emulated = std::make_unique<GpuExchangeSite>();
    return OpenGpuExchange(attrs, state->emulated.get());
  });
}

ffi::ErrorOr<std::unique_ptr<StartSite>> InstantiateStart(ffi::Dictionary attrs) {
  const auto nothing = [](const CallAttributes&, StartSite*) { return ffi::Error::Success(); };
  return MakeSite<StartSite>(DecodeAttributes(GetContract().start, attrs), nothing);
}

// ---- what is done in every call

void Begin(const Buffers& buffers, PlanSite* state, int64_t run_id, int32_t where, Completion done) {
  CountsArgs args;
  if (DecodeCounts(buffers, *state->site, state->table_words, &args)) {
    return state->counts->Start(run_id, where, args, std::move(done));
  }
  state->counts->FailGroup(run_id, where, UnexpectedOperands(), std::move(done));
}

bool IsToken(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::DataType::U32 && buffer.size_bytes() == sizeof(Turns::Token);
}

Turns::Token ReadToken(const ffi::AnyBuffer& buffer) {
  Turns::Token token = 0;
  std::memcpy(&token, buffer.untyped_data(), sizeof(token));
  return token;
}

// A fraction of the time after which the devices that do not wait give up.
std::chrono::milliseconds PatienceOf(const CallSite& site) {
  return std::chrono::milliseconds(std::min<int64_t>(1000, site.timeout_ms / 4));
}

// Begins an exchange, in its turn if it has one; the handler does not wait for that.
void Begin(const Buffers& buffers, ExchangeSite* state, int64_t run_id, int32_t where, Completion done) {
  ExchangeArgs args;
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
  const ffi::AnyBuffer& token = buffers[Operand::kToken];
  if (IsToken(token) &&
      Turns::Get().Take(ReadToken(token), {state->site->channel, where, PatienceOf(*state->site), run})) {
    return;
  }
  exchange.FailGroup(run_id, where, Status::Invalid("its token is of no start"), std::move(done));
}

// Begins what the devices of a group do together. Begin calls `done` once, whether that succeeds or fails.
template <typename Site>
ffi::Future Execute(Site* state, ffi::RunId run, int32_t ordinal, ffi::RemainingArgs args,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  const auto buffers = state->Take(args, *result);
  if (!buffers.has_value()) return Failed(ToError(UnexpectedOperands()));
  if (state->emulated != nullptr) return RunEmulated(state->emulated.get(), run, ordinal, *buffers);
  const int32_t where = DecodePartition((*buffers)[Operand::kPartition], *state->site);
  if (where < 0) return Failed(ToError(FailsAlone(*state->site, UnexpectedOperands())));
  ffi::Promise promise;
  ffi::Future future(promise);
  Begin(*buffers, state, run.run_id, where, Completing(std::move(promise)));
  return future;
}

// Gives an exchange, which is a call of its own, its place in the order of exchanges. Of the arrays that it waits for,
// some are tokens; others that look like them are numbers of no turn.
ffi::Error ExecuteStart(StartSite* site, ffi::RemainingArgs after, ffi::Result<ffi::AnyBuffer> result,
                        ffi::Dictionary /*attrs*/) {
  site->Receive();
  if (!IsToken(*result)) return ToError(UnexpectedOperands());
  std::vector<Turns::Token> earlier;
  for (size_t i = 0; i < after.size(); ++i) {
    const auto array = after.get<ffi::AnyBuffer>(i);
    if (array.has_value() && IsToken(*array)) earlier.push_back(ReadToken(*array));
  }
  const Turns::Token token = Turns::Get().Add(site, earlier);
  std::memcpy(result->untyped_data(), &token, sizeof(token));
  return ffi::Error::Success();
}

// XLA was asked to give value and result one buffer; it is free not to. A done has the operands of its start, so that
// XLA keeps their memory until the rows have come.
ffi::Error Pass(ffi::AnyBuffer value, ffi::RemainingArgs /*earlier*/, ffi::Result<ffi::AnyBuffer> result,
                ffi::Dictionary /*attrs*/) {
  if (result->size_bytes() != value.size_bytes()) return ToError(UnexpectedOperands());
  if (result->untyped_data() != value.untyped_data()) {
    std::memcpy(result->untyped_data(), value.untyped_data(), value.size_bytes());
  }
  return ffi::Error::Success();
}

// The thread of XLA's that called this may have more to begin, which would wait for as long as what follows runs. If
// the call is detached, XLA runs what follows on the other thread that completes the future, unless it is completed
// before XLA has looked at it. Waking a thread takes longer than that, unless the host is busy.
ffi::Future PassLater(ffi::AnyBuffer value, ffi::RemainingArgs earlier, ffi::Result<ffi::AnyBuffer> result,
                      ffi::Dictionary attrs) {
  const auto decoded = DecodeAttributes(GetContract().after, attrs);
  if (!decoded.has_value()) return Failed(decoded.error());
  if (ffi::Error error = Pass(value, earlier, result, attrs); error.failure()) return Failed(std::move(error));
  ffi::Promise promise;
  ffi::Future future(promise);
  if (!decoded->detached) {
    promise.SetAvailable();
    return future;
  }
  Completer::Get().Run([done = std::make_shared<ffi::Promise>(std::move(promise))] { done->SetAvailable(); });
  return future;
}

ffi::Error DoNothing(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

template <typename Site>
auto BindExecute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<Site>>()
      .template Ctx<ffi::RunId>()
      .template Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .template Ret<ffi::AnyBuffer>()
      .Attrs();
}

auto BindValue() { return ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().RemainingArgs().Ret<ffi::AnyBuffer>().Attrs(); }

XLA_FFI_DEFINE_HANDLER(kInstantiatePlan, InstantiatePlan<false>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateEmulatedPlan, InstantiatePlan<true>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecutePlan, Execute<PlanSite>, BindExecute<PlanSite>());
XLA_FFI_DEFINE_HANDLER(kInstantiateExchange, InstantiateExchange<false>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateEmulatedExchange, InstantiateExchange<true>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecuteExchange, Execute<ExchangeSite>, BindExecute<ExchangeSite>());
XLA_FFI_DEFINE_HANDLER(kInstantiateStart, InstantiateStart, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecuteStart, ExecuteStart,
                       ffi::Ffi::Bind().Ctx<ffi::State<StartSite>>().RemainingArgs().Ret<ffi::AnyBuffer>().Attrs());
XLA_FFI_DEFINE_HANDLER(kPass, Pass, BindValue());
XLA_FFI_DEFINE_HANDLER(kPassLater, PassLater, BindValue());
XLA_FFI_DEFINE_HANDLER(kEmpty, DoNothing, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

}  // namespace

Target EmptyTarget() { return TargetOf<kEmpty>(GetContract().empty); }

std::vector<Target> CpuTargets(bool emulates) {
  const Contract& contract = GetContract();
  return {emulates ? TargetOf<PlanSite, kInstantiateEmulatedPlan, kExecutePlan>(contract.plan)
                   : TargetOf<PlanSite, kInstantiatePlan, kExecutePlan>(contract.plan),
          emulates ? TargetOf<ExchangeSite, kInstantiateEmulatedExchange, kExecuteExchange>(contract.exchange)
                   : TargetOf<ExchangeSite, kInstantiateExchange, kExecuteExchange>(contract.exchange),
          TargetOf<StartSite, kInstantiateStart, kExecuteStart>(contract.start),
          emulates ? EmulatedDoneTarget() : TargetOf<kPass>(contract.done),
          TargetOf<kPassLater>(contract.after),
          LevelTarget(),
          DealTarget(),
          EmptyTarget()};
}

}  // namespace fastjax::handlers
