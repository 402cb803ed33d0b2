#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "handlers/decode.h"
#include "handlers/handlers.h"
#include "planner/planner.h"
#include "planner/table.h"
#include "transport/in_process/in_process.h"

namespace fastjax::handlers {
namespace {

using transport::Status;

std::atomic<int64_t> plans_made{0};

struct PlanSite {
  static ffi::TypeId id;
  std::shared_ptr<const transport::CallSite> site;
  int64_t table_words = 0;
  std::unique_ptr<transport::Counts> counts;
};

ffi::TypeId PlanSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

// Only one thread plans for a call site at a time, so one planner serves them all.
transport::PlanFunction PlanWith(std::shared_ptr<const transport::CallSite> site, planner::Planner planner) {
  auto shared = std::make_shared<planner::Planner>(std::move(planner));
  return [site = std::move(site), shared](const int64_t* traffic, const std::vector<transport::LocalTable>& tables) {
    shared->Plan(traffic);
    plans_made.fetch_add(1, std::memory_order_relaxed);
    for (const auto& table : tables) {
      if (!planner::WriteTable(shared.get(), table.rank, table.words)) {
        return Status::Invalid(site->Prefix() + "a device sends or stages 2^31 rows or more; split the exchange.");
      }
    }
    return Status::Ok();
  };
}

ffi::ErrorOr<std::unique_ptr<PlanSite>> Instantiate(ffi::Dictionary attrs) {
  auto site = DecodeCallSite(attrs);
  if (!site.has_value()) return ffi::Unexpected(site.error());
  const auto topology_words = attrs.get<ffi::Span<const int64_t>>("topology");
  const auto scheduler = attrs.get<int64_t>("scheduler");
  const auto row_bytes = attrs.get<int64_t>("row_bytes");
  if (!topology_words.has_value() || topology_words->size() != 6 || !scheduler.has_value() || !row_bytes.has_value()) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: a plan's attributes are incomplete"));
  }
  const auto& words = *topology_words;
  const planner::Topology topology{
      static_cast<int32_t>(words[0]), static_cast<int32_t>(words[1]), words[2], words[3], words[4], words[5]};
  const auto count = static_cast<int64_t>(planner::SchedulerNames().size());
  if (topology.devices() != (*site)->group_size || *scheduler < 0 || *scheduler >= count) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("fastjax: the topology does not fit the group"));
  }
  const auto kind = static_cast<planner::Scheduler>(*scheduler);
  auto state = std::make_unique<PlanSite>();
  state->site = *site;
  state->table_words = planner::TableWords(topology, kind);
  state->counts = transport::in_process::InProcessTransport::Get().OpenCounts(
      *site, PlanWith(*site, planner::Planner(topology, kind, *row_bytes)));
  return state;
}

ffi::Future Execute(PlanSite* state, ffi::RunId run, ffi::AnyBuffer send_sizes, ffi::AnyBuffer partition,
                    ffi::Result<ffi::BufferR1<ffi::DataType::S32>> table, ffi::Dictionary) {
  const auto sizes = DecodeInts(send_sizes);
  const int32_t where = DecodePartition(partition, *state->site);
  if (!sizes.has_value() || sizes->size % state->site->group_size != 0 || where < 0 ||
      static_cast<int64_t>(table->element_count()) != state->table_words) {
    return Failed(ffi::Error::InvalidArgument(state->site->Prefix() + "unexpected operands"));
  }
  ffi::Promise promise;
  ffi::Future future(promise);
  state->counts->Start(run.run_id, where, {*sizes, table->typed_data()}, Completing(std::move(promise)));
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<PlanSite>>()
                           .Ctx<ffi::RunId>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::BufferR1<ffi::DataType::S32>>()
                           .Attrs());

constexpr const char* kTypeName = "fastjax_plan_site_v1";

}  // namespace

XLA_FFI_Error* PlanInstantiate(XLA_FFI_CallFrame* frame) {
  return CallWithSiteType<PlanSite>(frame, kInstantiate, kTypeName);
}

XLA_FFI_Error* PlanExecute(XLA_FFI_CallFrame* frame) { return CallWithSiteType<PlanSite>(frame, kExecute, kTypeName); }

int64_t PlansMade() { return plans_made.load(std::memory_order_relaxed); }

}  // namespace fastjax::handlers
