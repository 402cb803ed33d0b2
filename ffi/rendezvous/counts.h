// Declares call sites that only plan: they gather and plan the devices' counts, and move nothing.
#ifndef FASTJAX_RENDEZVOUS_COUNTS_H_
#define FASTJAX_RENDEZVOUS_COUNTS_H_

#include <memory>

#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "rendezvous/process_group.h"

namespace fastjax {

// Opens a call site. For devices of one process, without a process group: the last device to arrive plans with the
// counts of all. For devices of several: each process gets the counts of all, makes the same plan, and writes its own
// devices' tables.
std::shared_ptr<Counts> OpenCounts(std::shared_ptr<ProcessGroup> process_group,
                                   const std::shared_ptr<const CallSite>& site, PlanFunction plan);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_COUNTS_H_
