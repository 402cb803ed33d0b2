// Declares Fabric, which sends messages by NCCL, or RCCL: between devices of this process that cannot reach each
// other's memory, and to and from devices of other processes.
#ifndef FASTJAX_BACKENDS_GPU_NCCL_FABRIC_H_
#define FASTJAX_BACKENDS_GPU_NCCL_FABRIC_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "backends/gpu/device/layout.h"
#include "backends/gpu/nccl/communicator_group.h"
#include "backends/gpu/nccl/library.h"
#include "backends/gpu/nccl/pending_messages.h"

namespace fastjax::gpu::nccl {

// Brings the id of new communicators for a group from the process that has made it, where `makes` is set, to the
// others. All processes of the group agree on their `name`, and on `generation`, which counts the ids of that name that
// a process has had. Waits no longer than the call site's limit. Callers put before its errors what they are for.
using ShareId = std::function<Status(const CallSite& site, int32_t group, const std::string& name, int64_t generation,
                                     bool makes, UniqueId* id)>;

// Moves the messages of one group of a call site, one exchange at a time. There is one for all of its exchanges, since
// what failed in one is told to the next.
class Channel {
 public:
  Channel(const CallSite& site, int32_t group) : report_(std::make_shared<Report>(site, group)) {}

  // To be held from when the channel is connected until an exchange has been put on streams.
  std::mutex& mutex() { return mutex_; }
  // Puts messages, which move together, on the streams of their calls. Both ends list those from one device to another
  // in the same order, in groups that agree. The channel must be connected.
  Status Move(const MessageEnd* messages, int64_t count, const std::vector<kernels::Stream>& streams);

 private:
  friend class Fabric;

  const std::shared_ptr<Report> report_;
  std::mutex mutex_;
  std::shared_ptr<CommunicatorGroup> communicator_group_;
};

// Thread-safe. Communicators are made when a call site's group first needs them, shared by call sites, and closed with
// the last of these.
class Fabric {
 public:
  // `libraries`: names and paths, as Load takes them, when they are needed. `share_id`: null where this process has all
  // devices.
  Fabric(std::shared_ptr<Gpu> gpu, std::vector<std::string> libraries, ShareId share_id = nullptr)
      : gpu_(std::move(gpu)), libraries_(std::move(libraries)), share_id_(std::move(share_id)) {}

  // Completes a layout that has its calls with domains: devices of this process are one domain if all may touch each
  // other's memory.
  Status FindDomains(const CallSite& site, Layout* layout);
  // Connects the channel of a group of a call site to devices that are in different domains.
  Status Connect(const CallSite& site, int32_t group, const Layout& layout, Channel* channel);

 private:
  // Communicators of one name.
  struct Known {
    std::mutex mutex;  // taken before the communicator group's, and while communicators of this name are made
    std::weak_ptr<CommunicatorGroup> communicator_group;
    int64_t generation = 0;
  };

  Status FindMembers(const CallSite& site, int32_t group, const Layout& layout, std::vector<Member>* members) const;
  Status Find(const CallSite& site, int32_t group, const std::vector<Member>& members,
              std::shared_ptr<CommunicatorGroup>* communicator_group);
  Status Make(const CallSite& site, int32_t group, const std::vector<Member>& members, const std::string& name,
              Known* known, std::shared_ptr<CommunicatorGroup>* communicator_group);
  Status Identify(const Library& library, const CallSite& site, int32_t group, const std::vector<Member>& members,
                  const std::string& name, int64_t generation, UniqueId* id) const;

  const std::shared_ptr<Gpu> gpu_;
  const std::vector<std::string> libraries_;
  const ShareId share_id_;
  std::mutex mutex_;
  std::map<std::string, Known> known_;
};

}  // namespace fastjax::gpu::nccl

#endif  // FASTJAX_BACKENDS_GPU_NCCL_FABRIC_H_
