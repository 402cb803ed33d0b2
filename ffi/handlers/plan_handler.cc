// The handlers of plans in CPU programs, which gather counts as well, or only that. All ranks on one device are planned
// for by an emulated GPU.
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "backends/registry.h"
#include "handlers/decode.h"
#include "handlers/emulated_calls.h"

namespace fastjax::handlers {
namespace {

struct PlanSite : SiteState {
  inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kTypeName = "fastjax_plan_site_v2";
  std::shared_ptr<const CallSite> site;
  int64_t table_words = 0;
  std::shared_ptr<Counts> counts;
  std::unique_ptr<GpuPlanSite> emulated;  // in place of all these
};

// Whether the experts whose choices are counted, if there are any, divide over the devices.
bool CanCount(const CallSite& site) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto fits = [](int64_t value) { return value >= 0 && value <= kMost; };
  return fits(site.experts) && fits(site.servers) && site.experts % site.group_size == 0;
}

ffi::Error OpenOnCpus(const CallAttributes& attrs, PlanSite* state) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return site.error();
  Backend backend;
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
  state->counts = backend.OpenCounts(*site, std::move(planning.plan));
  return ffi::Error::Success();
}

template <bool kEmulates>
ffi::ErrorOr<std::unique_ptr<PlanSite>> Instantiate(ffi::Dictionary dictionary) {
  const auto decoded = DecodeAttributes(GetContract().plan, dictionary);
  return MakeSite<PlanSite>(decoded, [](const CallAttributes& attrs, PlanSite* state) {
    // Emulated GPUs do not gather.
    const bool on_cpus = !kEmulates || attrs.scheduler < 0;
    if (on_cpus && attrs.operands.Has(Operand::kPartition)) return OpenOnCpus(attrs, state);
    state->emulated = std::make_unique<GpuPlanSite>();
    return OpenGpuPlan(attrs, state->emulated.get());
  });
}

ffi::Future Execute(PlanSite* state, ffi::RunId run, int32_t ordinal, ffi::RemainingArgs operands,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary /*attrs*/) {
  const auto buffers = state->Take(operands, *result);
  if (!buffers.has_value()) return Failed(ToError(UnexpectedOperands()));
  if (state->emulated != nullptr) return RunEmulated(state->emulated.get(), run, ordinal, *buffers);
  const int32_t where = DecodePartition((*buffers)[Operand::kPartition], *state->site);
  if (where < 0) return Failed(ToError(FailsAlone(*state->site, UnexpectedOperands())));
  ffi::Promise promise;
  ffi::Future future(promise);
  CountsArgs args;
  if (DecodeCounts(*buffers, *state->site, state->table_words, &args)) {
    state->counts->Start(run.run_id, where, args, Completing(std::move(promise)));
  } else {
    state->counts->FailGroup(run.run_id, where, UnexpectedOperands(), Completing(std::move(promise)));
  }
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

}  // namespace

Bundle Plan() { return BundleOf<PlanSite, kInstantiate, kExecute>(); }
Bundle EmulatedPlan() { return BundleOf<PlanSite, kInstantiateEmulated, kExecute>(); }

}  // namespace fastjax::handlers
