// Which backend moves a call site's rows.
#ifndef FASTJAX_BACKENDS_REGISTRY_H_
#define FASTJAX_BACKENDS_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "exchange/status.h"
#include "rendezvous/process_group.h"

namespace fastjax {

// Finds the backend of programs on CPUs: that of this process's memory, or that of the network where devices of other
// processes take part. Fails where no network has been opened.
Status FindBackend(const CallSite& site, std::shared_ptr<Backend>* backend);

// Says from where XLA counts the launches of the executable of a module that was made last. Nothing if no call site of
// this process waits for it.
void CountLaunchesFrom(const std::string& module, uint32_t start);

// Finds the group by which the processes of the job meet. Fails where no network has been opened.
Status FindProcessGroup(const CallSite& site, std::shared_ptr<ProcessGroup>* process_group);

}  // namespace fastjax

#endif  // FASTJAX_BACKENDS_REGISTRY_H_
