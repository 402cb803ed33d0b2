#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "backends/gpu/gpu_backend.h"
#include "rendezvous/process_all_gather.h"

namespace fastjax::gpu {
namespace {

// A message says whether it is from the process that made the id, and then the id.
constexpr size_t kIdWords = sizeof(nccl::UniqueId) / sizeof(int64_t);
constexpr size_t kWords = 1 + kIdWords;

class ProcessIdExchange final : public nccl::UniqueIdExchange {
 public:
  explicit ProcessIdExchange(std::shared_ptr<ProcessGroup> process_group) : process_group_(std::move(process_group)) {}

  std::string NameOf(const CallSite& site, int32_t group) override;
  Status Share(const CallSite& site, int32_t group, const std::string& name, int64_t generation, bool makes,
               nccl::UniqueId* id) override;

 private:
  const std::shared_ptr<ProcessGroup> process_group_;
};

// Devices by their process and their number in it.
std::string ProcessIdExchange::NameOf(const CallSite& site, int32_t group) {
  std::string name = "GPUs";
  for (const int32_t position : site.position_at) {
    const auto partition = static_cast<size_t>(site.partition(group, position));
    name += " " + std::to_string(site.process_of[partition]) + "." + std::to_string(site.rail_of[partition]);
  }
  return name;
}

Status ProcessIdExchange::Share(const CallSite& site, int32_t group, const std::string& name, int64_t generation,
                                bool makes, nccl::UniqueId* id) {
  std::vector<int64_t> words(kWords, 0);
  words[0] = makes ? 1 : 0;
  if (makes) std::memcpy(&words[1], id->bytes, sizeof(id->bytes));
  fastjax::ProcessAllGather all_gather(process_group_.get(), std::move(words));
  ProcessSession& process_session = all_gather.process_session();
  process_session.text = "the communicators of " + name;
  process_session.key = {process_group_->transport->KeyedHash(process_session.text.data(), process_session.text.size()),
                         0};
  process_session.launch_id.run_id = generation;
  process_session.timeout = std::chrono::milliseconds(site.timeout_ms);
  for (int32_t position = 0; position < site.group_size; ++position) {
    const int32_t owner = site.process_of[static_cast<size_t>(site.partition(group, position))];
    if (owner != process_group_->transport->process()) process_session.others.push_back(owner);
  }
  std::sort(process_session.others.begin(), process_session.others.end());
  process_session.others.erase(std::unique(process_session.others.begin(), process_session.others.end()),
                               process_session.others.end());
  std::vector<std::vector<int64_t>> answers;
  if (Status status = all_gather.Run(&answers); !status.ok() || makes) return status;
  for (const std::vector<int64_t>& theirs : answers) {
    if (theirs.size() != kWords || theirs[0] != 1) continue;
    std::memcpy(id->bytes, &theirs[1], sizeof(id->bytes));
    return Status::Ok();
  }
  return Status::Internal("no process has made a communicator; do all run the same version?");
}

}  // namespace

std::shared_ptr<nccl::UniqueIdExchange> MakeIdExchange(std::shared_ptr<ProcessGroup> process_group) {
  return std::make_shared<ProcessIdExchange>(std::move(process_group));
}

}  // namespace fastjax::gpu
