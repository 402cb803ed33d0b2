// NCCL, as far as we use it, between devices of the emulated GPU: what is put on a stream happens when the stream comes
// to it, messages are matched by communicator, pair and order, and whoever lacks a peer waits until it is aborted.
#include "support/gpu/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/gpu/nccl/api.h"
#include "kernels/driver.h"

namespace {

using namespace fastjax::gpu::nccl;  // NOLINT(google-build-using-namespace): it is these
using fastjax::test::FakeNccl;

FakeNccl control;

void Sleep(int microseconds) {
  if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

// A message that waits for its receiver.
struct Parcel {
  const void* data;
  size_t bytes;
  bool taken = false;
};

// What the communicators of one id share.
struct Hub {
  explicit Hub(int n) : ranks(n) {}
  const int ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::set<int> joined;
  std::set<int> devices;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Parcel>>> parcels;
};

std::mutex hubs_mutex;
std::map<std::string, std::weak_ptr<Hub>> hubs;

std::shared_ptr<Hub> HubOf(const UniqueId& id, int ranks) {
  const std::lock_guard<std::mutex> lock(hubs_mutex);
  std::weak_ptr<Hub>& known = hubs[std::string(id.bytes, sizeof(id.bytes))];
  std::shared_ptr<Hub> hub = known.lock();
  if (hub == nullptr) known = hub = std::make_shared<Hub>(ranks);
  return hub;
}

struct Op {
  bool sends;
  void* data;
  size_t bytes;
  int peer;
};

int Now(std::atomic<int>* failure) { return failure->exchange(0); }

Result Mistake(const char* what) {
  ++control.mistakes;
  std::fprintf(stderr, "fake NCCL: %s\n", what);
  return kInvalidUsage;
}

// Which configs NCCL takes, by what 2.18 and 2.28 check.
bool IsUndefinedOr(int value, int least, int most) { return value == INT_MIN || (least <= value && value <= most); }

bool IsValid(const Config& config) {
  return config.magic == 0xcafebeef && IsUndefinedOr(config.blocking, 0, 1) &&
         IsUndefinedOr(config.cga_cluster_size, 0, INT_MAX) && IsUndefinedOr(config.min_ctas, 1, INT_MAX) &&
         IsUndefinedOr(config.max_ctas, 1, INT_MAX) && config.min_ctas <= config.max_ctas &&
         IsUndefinedOr(config.split_share, 0, 1);
}

// What NCCL takes and we must not give; null: nothing.
const char* MistakeIn(const Config& config) {
  if (config.size < 48 || config.version < 21800) return "a bad config";
  int traffic_class = 0;  // whatever is there
  std::memcpy(&traffic_class, reinterpret_cast<const char*>(&config) + 44, sizeof(traffic_class));
  return traffic_class == INT_MIN ? nullptr : "a config with a traffic class: NCCL 2.26 would use it";
}

int CurrentDevice() {
  int device = -1;
  fastjax_gpu_driver()->GetDevice(&device);
  return device;
}

}  // namespace

namespace fastjax::gpu::nccl {

// A communicator. The hub's mutex guards what changes.
struct Opaque {
  std::shared_ptr<Hub> hub;
  int rank = 0;
  int device = 0;
  bool blocking = true;
  bool aborted = false;
  int queued = 0;  // groups that streams have not done yet
  std::vector<Op> ops;
  void* stream = nullptr;
  std::atomic<int> state{kSuccess};
  std::atomic<bool> in_use{false};
  int polls = -1;      // whoever uses it guards this; see FakeNccl
  std::thread helper;  // does, where it does not block, what would

  void Join() {
    if (helper.joinable()) helper.join();
  }
  int Ask() {
    if (polls > 0) {
      --polls;
      return kInProgress;
    }
    if (polls == 0) Join();
    return state;
  }
};

}  // namespace fastjax::gpu::nccl

namespace {

// A call on a communicator. One thread at a time may make any, also what only asks how it is: since 2.26 NCCL ends
// there what its own threads have done.
class Use {
 public:
  explicit Use(Opaque* comm) : comm_(comm) { Begin(comm); }
  ~Use() { comm_->in_use = false; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  static void Begin(Opaque* comm) {
    if (comm->in_use.exchange(true)) Mistake("two threads use one communicator at once");
  }

 private:
  Opaque* const comm_;
};

struct Group {
  Opaque* comm;
  std::vector<Op> ops;
};

using Lock = std::unique_lock<std::mutex>;

void Receive(Opaque* comm, const Op& op, Lock* lock) {
  auto& parcels = comm->hub->parcels[{op.peer, comm->rank}];
  comm->hub->changed.wait(*lock, [&] { return comm->aborted || !parcels.empty(); });
  if (comm->aborted) {
    std::memset(op.data, 0xEE, op.bytes);  // undefined
    return;
  }
  const std::shared_ptr<Parcel> parcel = parcels.front();
  parcels.pop_front();
  if (parcel->bytes != op.bytes) {
    Mistake("a receive is not as long as its send");
  } else {
    std::memcpy(op.data, parcel->data, op.bytes);
  }
  parcel->taken = true;
  comm->hub->changed.notify_all();
}

void RunGroup(void* data) {
  const std::unique_ptr<Group> group(static_cast<Group*>(data));
  Opaque* const comm = group->comm;
  const std::shared_ptr<Hub> hub = comm->hub;
  Lock lock(hub->mutex);
  std::vector<std::pair<int, std::shared_ptr<Parcel>>> sent;  // to whom
  for (const Op& op : group->ops) {
    if (!op.sends || comm->aborted) continue;
    if (control.lost_sends > 0 && control.lost_sends.fetch_sub(1) > 0) continue;
    sent.emplace_back(op.peer, std::make_shared<Parcel>(Parcel{op.data, op.bytes}));
    hub->parcels[{comm->rank, op.peer}].push_back(sent.back().second);
  }
  hub->changed.notify_all();
  for (const Op& op : group->ops) {
    if (!op.sends) Receive(comm, op, &lock);
  }
  for (const auto& [peer, parcel] : sent) {
    hub->changed.wait(lock, [&, own = parcel.get()] { return comm->aborted || own->taken; });
    if (parcel->taken) continue;
    auto& queue = hub->parcels[{comm->rank, peer}];  // its memory is the sender's again
    queue.erase(std::remove(queue.begin(), queue.end(), parcel), queue.end());
  }
  --comm->queued;
  hub->changed.notify_all();
}

// What a thread has begun and not ended.
struct Pending {
  int depth = 0;
  int failure = 0;
  std::vector<std::pair<Comm*, std::unique_ptr<Opaque>>> inits;
  std::vector<Opaque*> talks;
};
thread_local Pending pending;

void JoinHub(Opaque* comm) {
  Lock lock(comm->hub->mutex);
  comm->hub->joined.insert(comm->rank);
  comm->hub->changed.notify_all();
}

void AwaitHub(Opaque* comm) {
  Lock lock(comm->hub->mutex);
  comm->hub->changed.wait(
      lock, [&] { return comm->aborted || static_cast<int>(comm->hub->joined.size()) == comm->hub->ranks; });
}

void Enqueue(Opaque* comm) {
  auto group = std::make_unique<Group>(Group{comm, std::move(comm->ops)});
  comm->ops.clear();
  {
    const Lock lock(comm->hub->mutex);
    ++comm->queued;
  }
  fastjax_gpu_driver()->CallHost(comm->stream, RunGroup, group.release());
}

// A little later, beside whoever called, where it does not block.
template <typename Work>
Result Do(Opaque* comm, Work work) {
  if (comm->blocking) {
    work();
    return kSuccess;
  }
  comm->Join();
  comm->state = kInProgress;
  comm->polls = control.polls;
  comm->helper = std::thread([comm, work] {
    Sleep(control.late);
    fastjax_gpu_driver()->SetDevice(comm->device);
    work();
    comm->state = kSuccess;
  });
  return kInProgress;
}

Result EndGroup() {
  Pending own = std::move(pending);
  pending = Pending();
  if (const int failure = Now(&control.fail_group_end); failure != 0) own.failure = failure;
  if (own.failure != 0) {
    for (Opaque* comm : own.talks) comm->ops.clear();
    return static_cast<Result>(own.failure);
  }
  Result result = kSuccess;
  std::vector<Opaque*> made;
  for (auto& [to, comm] : own.inits) {
    ++control.live;
    ++control.made;
    made.push_back(comm.get());
    *to = comm.release();
    JoinHub(made.back());
  }
  for (Opaque* comm : made) {
    if (Do(comm, [comm] { AwaitHub(comm); }) == kInProgress) result = kInProgress;
  }
  for (Opaque* comm : own.talks) {
    if (Do(comm, [comm] { Enqueue(comm); }) == kInProgress) result = kInProgress;
  }
  return result;
}

Result Talk(bool sends, void* data, size_t count, DataType type, int peer, Comm comm, void* stream) {
  if (type != kInt8 || (count == 0 && !control.to_self)) return Mistake("a message without bytes");
  if ((peer == comm->rank && !control.to_self) || peer < 0 || peer >= comm->hub->ranks)
    return Mistake("a message to nobody");
  if (CurrentDevice() != comm->device) return Mistake("another device's communicator");
  const Use use(comm);
  if (comm->state == kInProgress) return Mistake("a call on a communicator that is not ready");
  if (comm->ops.empty()) pending.talks.push_back(comm);
  if (!comm->ops.empty() && comm->stream != stream) return Mistake("two streams in one group");
  comm->stream = stream;
  comm->ops.push_back({sends, data, count, peer});
  if (pending.depth > 0) return comm->blocking ? kSuccess : kInProgress;
  return EndGroup();  // a group of its own
}

void Leave(Opaque* comm, bool abort) {
  Use::Begin(comm);
  {
    Lock lock(comm->hub->mutex);
    comm->aborted = abort;
    comm->hub->changed.notify_all();
  }
  comm->Join();
  {
    Lock lock(comm->hub->mutex);
    comm->hub->changed.wait(lock, [&] { return comm->queued == 0; });
  }
  if (abort) ++control.aborted;
  --control.live;  // last: tests wait for it, then read the other
  delete comm;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED FakeNccl* fastjax_fake_nccl() { return &control; }

EXPORTED Result ncclGetVersion(int* version) {
  *version = control.version;
  return kSuccess;
}

EXPORTED Result ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> next{0};
  if (const int failure = Now(&control.fail_id); failure != 0) return static_cast<Result>(failure);
  std::memset(id->bytes, 0, sizeof(id->bytes));
  std::snprintf(id->bytes, sizeof(id->bytes), "fake %d", ++next);
  return kSuccess;
}

EXPORTED Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  if (const int failure = Now(&control.fail_init); failure != 0) {
    pending.failure = failure;
    return static_cast<Result>(failure);
  }
  if (const char* const mistake = MistakeIn(*config); mistake != nullptr) return Mistake(mistake);
  if (rank < 0 || !IsValid(*config)) {
    if (pending.depth > 0) pending.failure = kInvalidArgument;
    return kInvalidArgument;
  }
  auto made = std::make_unique<Opaque>();
  made->hub = HubOf(id, ranks);
  made->rank = rank;
  made->device = CurrentDevice();
  made->blocking = config->blocking != 0;
  if (made->hub->ranks != ranks) return Mistake("ranks do not agree");
  {
    const Lock lock(made->hub->mutex);
    if (made->hub->joined.count(rank) != 0) return Mistake("a rank comes twice");
    if (!made->hub->devices.insert(made->device).second) return Mistake("a device has two ranks");
  }
  const Result begun = made->blocking ? kSuccess : kInProgress;
  pending.inits.emplace_back(comm, std::move(made));
  return pending.depth > 0 ? begun : EndGroup();
}

EXPORTED Result ncclCommFinalize(Comm comm) {
  const Use use(comm);
  return comm->blocking ? kSuccess : Do(comm, [] {});
}

EXPORTED Result ncclCommDestroy(Comm comm) {
  Leave(comm, false);
  return kSuccess;
}

#ifndef FASTJAX_FAKE_NCCL_WITHOUT_ABORT
EXPORTED Result ncclCommAbort(Comm comm) {
  Leave(comm, true);
  return kSuccess;
}
#endif

EXPORTED Result ncclCommGetAsyncError(Comm comm, Result* error) {
  const Use use(comm);
  Sleep(control.asking);
  const int injected = control.async_error;
  *error = static_cast<Result>(injected != 0 ? injected : comm->Ask());
  return kSuccess;
}

EXPORTED Result ncclGroupStart() {
  ++pending.depth;
  return kSuccess;
}

EXPORTED Result ncclGroupEnd() {
  if (pending.depth == 0) return Mistake("the end of no group");
  return --pending.depth > 0 ? kSuccess : EndGroup();
}

EXPORTED Result ncclSend(const void* data, size_t count, DataType type, int peer, Comm comm, void* stream) {
  if (const int failure = Now(&control.fail_send); failure != 0) {
    pending.failure = failure;
    return static_cast<Result>(failure);
  }
  return Talk(true, const_cast<void*>(data), count, type, peer, comm, stream);  // NOLINT
}

EXPORTED Result ncclRecv(void* data, size_t count, DataType type, int peer, Comm comm, void* stream) {
  return Talk(false, data, count, type, peer, comm, stream);
}

EXPORTED const char* ncclGetErrorString(Result result) {
  return result == kRemoteError ? "remote process exited or there was a network error" : "unhandled system error";
}

EXPORTED const char* ncclGetLastError(Comm) { return "as the test wants it"; }
