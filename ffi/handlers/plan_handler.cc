// The handlers of plans in CPU programs, which gather counts as well, or only that. All ranks on one device are planned
// for by an emulated GPU.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "backends/registry.h"
#include "handlers/decode.h"
#include "handlers/emulated_calls.h"
#include "handlers/handlers.h"
#include "handlers/loopback_calls.h"
#include "handlers/operands.h"
#include "handlers/planning.h"

namespace fastjax::handlers {
namespace {

struct PlanSite {
  static ffi::TypeId id;
  HandedOver handed_over;
  OperandList operands;
  std::shared_ptr<const CallSite> site;
  int64_t table_words = 0;
  std::shared_ptr<Counts> counts;
  std::unique_ptr<GpuPlanSite> emulated;  // in place of all these
};

ffi::TypeId PlanSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

// Whether the experts whose choices are counted, if there are any, divide over the devices.
bool CanCount(const CallSite& site) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto fits = [](int64_t value) { return value >= 0 && value <= kMost; };
  return fits(site.experts) && fits(site.servers) && site.experts % site.group_size == 0;
}

ffi::Error OpenOnCpus(const CallAttributes& attrs, PlanSite* state) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return site.error();
  std::shared_ptr<Backend> backend;
  if (Status found = FindBackend(**site, &backend); !found.ok()) return ToError(found);
  Planning planning;
  if (attrs.scheduler >= 0) {
    auto decoded = DecodePlanning(attrs, *site);
    if (!decoded.has_value()) return decoded.error();
    planning = std::move(*decoded);
  } else if (!CanCount(**site)) {
    return ffi::Error::InvalidArgument("fastjax: the counts of servers and of experts disagree with the devices");
  }
  state->site = *site;
  state->table_words = planning.table_words;
  state->counts = backend->OpenCounts(*site, std::move(planning.tables));
  return ffi::Error::Success();
}

template <bool kEmulates>
ffi::ErrorOr<std::unique_ptr<PlanSite>> Instantiate(ffi::Dictionary dictionary) {
  const auto attrs = DecodeAttributes(GetContract().plan, dictionary);
  if (!attrs.has_value()) return ffi::Unexpected(attrs.error());
  const auto operands = DecodeOperands(GetContract().plan, *attrs);
  if (!operands.has_value()) return ffi::Unexpected(operands.error());
  auto state = std::make_unique<PlanSite>();
  state->operands = *operands;
  // Emulated GPUs do not gather.
  if ((kEmulates && attrs->scheduler >= 0) || !operands->Has(Operand::kPartition)) {
    state->emulated = std::make_unique<GpuPlanSite>();
    ffi::Error error = OpenGpuPlan(*attrs, *operands, state->emulated.get());
    if (error.failure()) return ffi::Unexpected(std::move(error));
  } else if (ffi::Error error = OpenOnCpus(*attrs, state.get()); error.failure()) {
    return ffi::Unexpected(std::move(error));
  }
  state->handed_over.Publish();
  return state;
}

// Returns the arguments of a device; none where buffers do not fit the call site.
std::optional<CountsArgs> DecodeCounts(const PlanBuffers& buffers, const PlanSite& state) {
  const auto sizes = DecodeInts(buffers.send_sizes);
  const bool plans = state.table_words > 0;
  if (!sizes.has_value() || (plans && sizes->size % state.site->group_size != 0)) return std::nullopt;
  const auto words = static_cast<int64_t>(buffers.table.element_count());
  CountsArgs args{*sizes, static_cast<int32_t*>(buffers.table.untyped_data())};
  if (plans && words == state.table_words) return args;
  if (words != state.table_words + state.site->group_size * sizes->size) return std::nullopt;
  args.gathered = args.table_words + state.table_words;
  return args;
}

ffi::Future Execute(PlanSite* state, ffi::RunId run, int32_t ordinal, ffi::RemainingArgs operands,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  state->handed_over.Receive();
  const auto buffers = TakePlan(state->operands, operands, *result);
  if (!buffers.has_value()) return Failed(ToError(UnexpectedOperands()));
  if (state->emulated != nullptr) {
    GpuPlanSite* const site = state->emulated.get();
    if (!buffers->partition.has_value()) return RunEmulated<LoopbackPlanCall>(site, run, ordinal, *buffers);
    return RunEmulated<GpuPlanCall>(site, run, ordinal, *buffers);
  }
  const int32_t where = buffers->partition.has_value() ? DecodePartition(*buffers->partition, *state->site) : -1;
  if (where < 0) return Failed(ToError(FailsAlone(*state->site, UnexpectedOperands())));
  ffi::Promise promise;
  ffi::Future future(promise);
  const auto args = DecodeCounts(*buffers, *state);
  if (!args.has_value()) {
    state->counts->FailGroup(run.run_id, where, UnexpectedOperands(), Completing(std::move(promise)));
    return future;
  }
  state->counts->Start(run.run_id, where, *args, Completing(std::move(promise)));
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate<false>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateEmulated, Instantiate<true>, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<PlanSite>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());

constexpr const char* kTypeName = "fastjax_plan_site_v2";

XLA_FFI_Error* CallExecute(XLA_FFI_CallFrame* frame) { return CallWithSiteType<PlanSite>(frame, kExecute, kTypeName); }

}  // namespace

Bundle Plan() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<PlanSite>(frame, kInstantiate, kTypeName); },
          CallExecute};
}

Bundle EmulatedPlan() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<PlanSite>(frame, kInstantiateEmulated, kTypeName); },
          CallExecute};
}

}  // namespace fastjax::handlers
