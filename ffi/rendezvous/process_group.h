// Declares ProcessGroup, the transport of a job with its users, and Site, a call site whose devices are spread over
// processes.
#ifndef FASTJAX_RENDEZVOUS_PROCESS_GROUP_H_
#define FASTJAX_RENDEZVOUS_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "rendezvous/launch_ids.h"
#include "rendezvous/process_rendezvous.h"
#include "runtime/transport.h"

namespace fastjax {

// The transport of a job, and the objects that use it.
struct ProcessGroup {
  explicit ProcessGroup(std::shared_ptr<Transport> of_job) : transport(std::move(of_job)), rendezvous(transport.get()) {
    transport->SetHandler(&rendezvous);
  }

  const std::shared_ptr<Transport> transport;
  ProcessRendezvous rendezvous;
  LaunchIds launch_ids;
};

// Text that completes the description of a call, so that processes that exchange in different ways do not meet.
std::string Describe(const ExchangeOptions& options);

class Site {
 public:
  // `what` completes the description of the call, which must be the same in every process.
  Site(std::shared_ptr<ProcessGroup> process_group, std::shared_ptr<const CallSite> site, const std::string& what);
  ~Site();
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  const CallSite& call_site() const { return *call_site_; }
  const std::shared_ptr<const CallSite>& shared_call_site() const { return call_site_; }
  ProcessGroup& process_group() const { return *process_group_; }
  int32_t process() const { return process_group_->transport->process(); }
  int32_t process_of(int32_t group, int32_t position) const {
    return call_site_->process_of[call_site_->partition(group, position)];
  }
  // Positions of this process's devices, ascending.
  const std::vector<int32_t>& local(int32_t group) const { return local_[group]; }

  // Fills in a session for the next launch of the group in this run, except for its message.
  void Begin(int64_t run_id, int32_t group, ProcessSession* session) const;
  // Encodes the message to the other processes: `words`.
  void Write(const std::vector<int64_t>& words, ProcessSession* session) const;

 private:
  const std::shared_ptr<ProcessGroup> process_group_;
  const std::shared_ptr<const CallSite> call_site_;
  std::string text_;
  uint64_t call_ = 0;  // a hash of the text and the module
  int64_t number_ = 0;
  std::vector<std::vector<int32_t>> others_;  // by group: processes
  std::vector<std::vector<int32_t>> local_;   // by group
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_GROUP_H_
