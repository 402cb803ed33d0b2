// Declares what a call site that plans needs.
#ifndef FASTJAX_HANDLERS_PLANNING_H_
#define FASTJAX_HANDLERS_PLANNING_H_

#include <cstdint>
#include <memory>

#include "exchange/backend.h"
#include "handlers/decode.h"
#include "planner/topology.h"

namespace fastjax::handlers {

struct Planning {
  // Either may be called by several threads at once.
  PlanFunction tables;
  SliceFunction slices;
  int64_t table_words = 0;
};

ffi::ErrorOr<planner::Topology> DecodeTopology(const CallAttributes& attrs);
ffi::ErrorOr<Planning> DecodePlanning(const CallAttributes& attrs, const std::shared_ptr<const CallSite>& site);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_PLANNING_H_
