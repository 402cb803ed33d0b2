#include <memory>
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

ffi::ErrorOr<std::unique_ptr<PlanSite>> Instantiate(ffi::Dictionary dictionary) {
  const auto attrs = DecodeAttributes(GetContract().plan, dictionary);
  if (!attrs.has_value()) return ffi::Unexpected(attrs.error());
  auto site = DecodeCallSite(*attrs);
  if (!site.has_value()) return ffi::Unexpected(site.error());
  std::shared_ptr<Backend> backend;
  if (Status found = FindBackend(**site, &backend); !found.ok()) return ffi::Unexpected(ToError(found));
  auto planning = DecodePlanning(*attrs, *site);
  if (!planning.has_value()) return ffi::Unexpected(planning.error());
  auto state = std::make_unique<PlanSite>();
  state->site = *site;
  state->table_words = planning->table_words;
  state->counts = backend->OpenCounts(*site, std::move(planning->tables));
  state->handed_over.Publish();
  return state;
}

ffi::Future Execute(const PlanBuffers& buffers, PlanSite* state, ffi::RunId run) {
  state->handed_over.Receive();
  const auto sizes = DecodeInts(buffers.send_sizes);
  const int32_t where = buffers.partition.has_value() ? DecodePartition(*buffers.partition, *state->site) : -1;
  if (where < 0) return Failed(ToError(FailsAlone(*state->site, UnexpectedOperands())));
  ffi::Promise promise;
  ffi::Future future(promise);
  if (!sizes.has_value() || sizes->size % state->site->group_size != 0 ||
      static_cast<int64_t>(buffers.table.element_count()) != state->table_words) {
    state->counts->Refuse(run.run_id, where, UnexpectedOperands(), Completing(std::move(promise)));
    return future;
  }
  state->counts->Start(run.run_id, where, {*sizes, buffers.table.typed_data()}, Completing(std::move(promise)));
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, Gathered<PlanOperands>(Execute),
                       BindCall<PlanOperands>(ffi::Ffi::Bind().Ctx<ffi::State<PlanSite>>().Ctx<ffi::RunId>()));

constexpr const char* kTypeName = "fastjax_plan_site_v1";

}  // namespace

Bundle Plan() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<PlanSite>(frame, kInstantiate, kTypeName); },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<PlanSite>(frame, kExecute, kTypeName); }};
}

}  // namespace fastjax::handlers
