// Declares call sites that only plan: they gather and plan the devices' counts, and move nothing.
#ifndef FASTJAX_RENDEZVOUS_COUNTS_H_
#define FASTJAX_RENDEZVOUS_COUNTS_H_

#include <memory>

#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "rendezvous/process_group.h"

namespace fastjax {

// Opens a call site for devices of one process: the last device to arrive plans with the counts of all.
std::shared_ptr<Counts> OpenDeviceCounts(const std::shared_ptr<const CallSite>& site, PlanFunction plan);
// Opens a call site for devices of several processes: each process gets the counts of all, makes the same plan, and
// writes its own devices' tables.
std::shared_ptr<Counts> OpenProcessCounts(std::shared_ptr<ProcessGroup> process_group,
                                          const std::shared_ptr<const CallSite>& site, PlanFunction plan);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_COUNTS_H_
