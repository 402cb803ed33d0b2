// Declares ProcessGroup, the transport of a job with its users, and Site, a call site whose devices are spread over
// processes.
#ifndef FASTJAX_RENDEZVOUS_PROCESS_GROUP_H_
#define FASTJAX_RENDEZVOUS_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/operation.h"
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

// Returns the processes but `process` that devices of the group are of, ascending.
std::vector<int32_t> OtherProcesses(const CallSite& site, int32_t group, int32_t process);

class Site {
 public:
  // `what` completes the description of the call, which must be the same in every process.
  Site(std::shared_ptr<ProcessGroup> process_group, std::shared_ptr<const CallSite> site, const std::string& what);
  ~Site();
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  const CallSite& call_site() const { return *call_site_; }
  ProcessGroup& process_group() const { return *process_group_; }
  int32_t process() const { return process_group_->transport->process(); }
  // Positions of this process's devices, ascending, and their ranks.
  const std::vector<int32_t>& local(int32_t group) const { return local_[group]; }
  const std::vector<int32_t>& local_ranks(int32_t group) const { return local_ranks_[group]; }

  // Fills in a session for the next launch of the group in this run, except for its message.
  void Begin(int64_t run_id, int32_t group, ProcessSession* session) const;
  // Fills in its message: the sizes and offsets of the local devices. `args` is by position.
  void Write(const std::vector<ExchangeArgs>& args, ProcessSession* session) const;
  void Write(const std::vector<CountsArgs>& args, ProcessSession* session) const;
  // Adds to `args` the sizes and offsets of devices of other processes, from their messages, once all have met. The
  // messages must live as long as the views in `args`.
  Status Read(const ProcessSession& session, std::vector<ExchangeArgs>* args) const;
  Status Read(const ProcessSession& session, std::vector<CountsArgs>* args) const;

 private:
  int32_t process_of(int32_t group, int32_t position) const {
    return call_site_->process_of[call_site_->partition(group, position)];
  }
  template <typename ReadDevice>
  Status ForEachDevice(const ProcessSession& session, int64_t words_each, ReadDevice read) const;

  const std::shared_ptr<ProcessGroup> process_group_;
  const std::shared_ptr<const CallSite> call_site_;
  std::string text_;
  uint64_t call_ = 0;  // a hash of the text and the module
  int64_t number_ = 0;
  std::vector<std::vector<int32_t>> others_;       // by group: processes
  std::vector<std::vector<int32_t>> local_;        // by group
  std::vector<std::vector<int32_t>> local_ranks_;  // by group
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_PROCESS_GROUP_H_
