#include <memory>
#include <optional>
#include <utility>

#include "backends/registry.h"
#include "handlers/decode.h"
#include "handlers/handlers.h"
#include "handlers/operands.h"
#include "handlers/planning.h"

namespace fastjax::handlers {
namespace {

struct PlanSite {
  static ffi::TypeId id;
  HandedOver handed_over;
  std::shared_ptr<const CallSite> site;
  int64_t table_words = 0;
  std::unique_ptr<Counts> counts;
};

ffi::TypeId PlanSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

ffi::ErrorOr<std::unique_ptr<PlanSite>> Open(const CustomCall& call, const ffi::Dictionary& dictionary) {
  const auto attrs = DecodeAttributes(call, dictionary);
  if (!attrs.has_value()) return ffi::Unexpected(attrs.error());
  auto site = DecodeCallSite(*attrs);
  if (!site.has_value()) return ffi::Unexpected(site.error());
  std::shared_ptr<Backend> backend;
  if (Status found = FindBackend(**site, &backend); !found.ok()) return ffi::Unexpected(ToError(found));
  Planning planning;
  if (&call == &GetContract().plan) {
    auto decoded = DecodePlanning(*attrs, *site);
    if (!decoded.has_value()) return ffi::Unexpected(decoded.error());
    planning = std::move(*decoded);
  }
  auto state = std::make_unique<PlanSite>();
  state->site = *site;
  state->table_words = planning.table_words;
  state->counts = backend->OpenCounts(*site, std::move(planning.tables));
  state->handed_over.Publish();
  return state;
}

ffi::ErrorOr<std::unique_ptr<PlanSite>> InstantiatePlan(ffi::Dictionary dictionary) {
  return Open(GetContract().plan, dictionary);
}

ffi::ErrorOr<std::unique_ptr<PlanSite>> InstantiateGather(ffi::Dictionary dictionary) {
  return Open(GetContract().gather, dictionary);
}

// Returns the arguments of a device; none where buffers do not fit the call site.
std::optional<CountsArgs> DecodeCounts(const PlanBuffers& buffers, const PlanSite& state) {
  const auto sizes = DecodeInts(buffers.send_sizes);
  const bool plans = state.table_words > 0;
  if (!sizes.has_value() || (plans && sizes->size % state.site->group_size != 0)) return std::nullopt;
  const auto words = static_cast<int64_t>(buffers.table.element_count());
  CountsArgs args{*sizes, buffers.table.typed_data()};
  if (plans && words == state.table_words) return args;
  if (words != state.table_words + state.site->group_size * sizes->size) return std::nullopt;
  args.gathered = args.table_words + state.table_words;
  return args;
}

ffi::Future Execute(const PlanBuffers& buffers, PlanSite* state, ffi::RunId run) {
  state->handed_over.Receive();
  const int32_t where = buffers.partition.has_value() ? DecodePartition(*buffers.partition, *state->site) : -1;
  if (where < 0) return Failed(ToError(FailsAlone(*state->site, UnexpectedOperands())));
  ffi::Promise promise;
  ffi::Future future(promise);
  const auto args = DecodeCounts(buffers, *state);
  if (!args.has_value()) {
    state->counts->Refuse(run.run_id, where, UnexpectedOperands(), Completing(std::move(promise)));
    return future;
  }
  state->counts->Start(run.run_id, where, *args, Completing(std::move(promise)));
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiatePlan, InstantiatePlan, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateGather, InstantiateGather, ffi::Ffi::BindInstantiate().Attrs());
// Both calls have the same operands.
XLA_FFI_DEFINE_HANDLER(kExecute, Gathered<PlanOperands>(Execute),
                       BindCall<PlanOperands>(ffi::Ffi::Bind().Ctx<ffi::State<PlanSite>>().Ctx<ffi::RunId>()));

constexpr const char* kTypeName = "fastjax_plan_site_v1";

}  // namespace

Bundle Plan() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<PlanSite>(frame, kInstantiatePlan, kTypeName); },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<PlanSite>(frame, kExecute, kTypeName); }};
}

Bundle Gather() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<PlanSite>(frame, kInstantiateGather, kTypeName); },
          Plan().execute};
}

}  // namespace fastjax::handlers
