#include "backends/network/ucx/transport.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <future>
#include <random>
#include <utility>

#include "backends/network/network_backend.h"
#include "runtime/process_state.h"

namespace fastjax::network::ucx {
namespace {

constexpr int kPolls = 16;
constexpr std::chrono::milliseconds kPatience{1000};      // with UCX, when it has been told to end something
constexpr std::chrono::milliseconds kAnswersWithin{400};  // a transport that is there, however busy its machine

// How often the process, or one that it comes from, has been forked: counted in the child.
struct Forks {
  std::atomic<int> count{0};
};

int WatchForks() {
  auto& forks = ProcessState<Forks>();
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ProcessState<Forks>().count.fetch_add(1); });
  return registered + forks.count.load();
}

uint64_t Random() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace

std::shared_ptr<UcxTransport> UcxTransport::Open(const TransportOptions& options, std::string* wrong) {
  std::shared_ptr<UcxTransport> transport(new UcxTransport);
  *wrong = transport->Start(options);
  return wrong->empty() ? transport : nullptr;
}

UcxTransport::UcxTransport()
    : connections_(&parts_),
      row_transfers_(&parts_, &connections_, [this] { Wake(); }),
      control_messages_(&parts_, &connections_) {}

std::string UcxTransport::Start(const TransportOptions& options) {
  if (options.processes < 1 || options.process < 0 || options.process >= options.processes) {
    return "process " + std::to_string(options.process) + " of " + std::to_string(options.processes) +
           " does not exist";
  }
  std::string wrong;
  parts_.library = Load(options.library, &wrong);
  if (parts_.library == nullptr) return wrong;
  forks_ = WatchForks();
  parts_.secret = options.secret;
  parts_.process = options.process;
  parts_.incarnation = Random();
  parts_.peers = std::vector<Peer>(static_cast<size_t>(options.processes));
  known_.resize(parts_.peers.size());
  for (size_t i = 0; i < parts_.peers.size(); ++i) parts_.peers[i].process = static_cast<int32_t>(i);

  const SignalsBlocked blocked;  // UCX has a thread, too
  const std::vector<std::string> nics = options.nics.empty() ? std::vector<std::string>{""} : options.nics;
  Addresses addresses;
  addresses.process = parts_.process;
  addresses.incarnation = parts_.incarnation;
  addresses.host = HostName() + ", pid " + std::to_string(getpid());
  for (const std::string& nic : options.nics) {
    wrong = CheckNic(nic);
    if (!wrong.empty()) return wrong;
    if (const std::string address = AddressOf(nic); !address.empty()) addresses.host += ", " + address;
  }
  const char* const everywhere = std::getenv("UCX_TLS");  // NOLINT(concurrency-mt-unsafe)
  if (MayUseMemory(!options.transports.empty() || everywhere == nullptr ? options.transports : everywhere)) {
    parts_.read_probe = ReadProbeAt(parts_.secret, &parts_.incarnation);
  }
  addresses.read_probe = parts_.read_probe;
  std::vector<int> descriptors;
  message_targets_.reserve(nics.size());
  for (const std::string& nic : nics) {
    const auto index = static_cast<int32_t>(parts_.nic_workers.size());
    auto nic_worker = NicWorker::Open(*parts_.library, index, nic, options.transports, options.processes, &wrong);
    if (nic_worker == nullptr) return wrong;
    message_targets_.push_back({this, nic_worker.get()});
    if (nic_worker->SetReceiver(&OnActiveMessage, &message_targets_.back()) != UCS_OK)
      return "UCX refuses active messages";
    descriptors.push_back(nic_worker->event_fd());
    addresses.nic_workers.push_back(nic_worker->address());
    parts_.nic_workers.push_back(std::move(nic_worker));
  }
  addresses_ = Encode(addresses);
  parts_.peers[static_cast<size_t>(parts_.process)].addresses = addresses;
  SetDescription(parts_.process, "process " + std::to_string(parts_.process) + " (" + addresses.host + ", this one)",
                 "");
  return Loop::Start(descriptors);
}

bool UcxTransport::Foreign() const { return forks_ != ProcessState<Forks>().count.load(); }

// ---- from any thread

bool UcxTransport::Post(std::function<void()> task) { return !Foreign() && Loop::Post(std::move(task)); }

void UcxTransport::SetDescription(int32_t process, const std::string& name, const std::string& trouble) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Known& known = known_[static_cast<size_t>(process)];
  if (!name.empty()) known.name = name;
  known.trouble = trouble;
}

std::string UcxTransport::Describe(int32_t process) const {
  if (!IsProcess(process)) return "process " + std::to_string(process) + ", which does not exist";
  const std::lock_guard<std::mutex> lock(mutex_);
  const Known& known = known_[static_cast<size_t>(process)];
  if (known.name.empty()) return "process " + std::to_string(process) + ", which has not joined";
  return known.name;
}

bool UcxTransport::HasJoined(int32_t process) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !IsProcess(process) || !known_[static_cast<size_t>(process)].name.empty();
}

std::string UcxTransport::Trouble(int32_t process) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return IsProcess(process) ? known_[static_cast<size_t>(process)].trouble : "";
}

std::string UcxTransport::AddPeer(int32_t process, const std::string& addresses) {
  Addresses decoded;
  std::string wrong = Decode(addresses, &decoded);
  if (wrong.empty() && (!IsProcess(process) || decoded.process != process)) {
    wrong = "addresses of process " + std::to_string(decoded.process) + ", of " + std::to_string(processes());
  }
  if (!wrong.empty()) return "process " + std::to_string(process) + " sent " + wrong;
  if (process == parts_.process) return "";
  Post([this, process, decoded = std::move(decoded)] { Join(&parts_.peers[static_cast<size_t>(process)], decoded); });
  return "";
}

void UcxTransport::PeerLost(int32_t process, const std::string& why) {
  Post([this, process, why] {
    Peer* const peer = PeerOf(process);
    if (peer == nullptr || process == parts_.process || peer->gone) return;
    peer->gone = true;
    peer->told = false;
    Lose(peer, Status::Unavailable(parts_.Name(*peer) + " cannot take part: " + why), peer->generation + 1);
  });
}

bool UcxTransport::Close(std::chrono::milliseconds limit) {
  if (Foreign()) return true;
  Post([this, limit] { BeginClosing(limit); });
  if (!OnThread() && Loop::Join(limit + 3 * kPatience)) return true;
  behind_ = shared_from_this();  // whatever holds the thread may need all of this again
  return false;
}

void UcxTransport::Halt() {
  if (Foreign()) return;
  Loop::Halt();
  if (!OnThread()) Loop::Join(kPatience);
}

TransportState UcxTransport::State() {
  auto promise = std::make_shared<std::promise<TransportState>>();
  std::future<TransportState> state = promise->get_future();
  Post([this, promise] { promise->set_value(StateNow()); });
  promise = nullptr;
  const bool told = !Foreign() && state.wait_for(kPatience) == std::future_status::ready;
  TransportState unknown = {{}, parts_.library->path, parts_.library->version, {}, {}};
  try {
    return told ? state.get() : unknown;
  } catch (const std::future_error&) {  // it was closed meanwhile
    return unknown;
  }
}

// ---- on the transport's thread

TransportState UcxTransport::StateNow() {
  TransportState state = {parts_.counters, parts_.library->path, parts_.library->version, {}, {}};
  for (const auto& nic_worker : parts_.nic_workers) {
    state.nic_workers.push_back({nic_worker->nic(), {}});
    for (Peer& peer : parts_.peers) {
      for (const std::shared_ptr<Endpoint>& endpoint : peer.endpoints) {
        if (endpoint->nic_worker != nic_worker->index() || endpoint->handle == nullptr) continue;
        for (std::string& name : nic_worker->TransportsOf(endpoint->handle)) {
          auto& names = state.nic_workers.back().transports;
          if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
        }
      }
    }
  }
  const bool rings =
      std::any_of(parts_.peers.begin(), parts_.peers.end(), [](const Peer& peer) { return peer.to.connected(); });
  if (rings) state.nic_workers.front().transports.emplace_back("memory");
  for (int32_t process = 0; process < processes(); ++process) {
    const std::string trouble = Trouble(process);
    state.peers.push_back(Describe(process) + (trouble.empty() ? "" : ", " + trouble));
  }
  return state;
}

// A ring is memory that a process holds: only those get one with which there is something to say. If the system refuses
// it, or a broken one was closed, the network serves as well: not tried again with every message. The greeting tells of
// the ring, and that this process can read what the peer offers.
void UcxTransport::Contact(int32_t process) {
  Peer* const peer = PeerOf(process);
  if (peer == nullptr) return;
  peer->contacted = true;
  if (!peer->joined || peer->gone || !peer->readable) return;
  if (!peer->ring_tried) {
    peer->ring_tried = true;
    peer->from.Open(RingProof(process, *peer), doorbell());
  }
  if (!peer->greeted) control_messages_.Hello(peer);
}

void UcxTransport::SendMessage(int32_t process, const void* data, size_t bytes) {
  Contact(process);
  control_messages_.Send(process, data, bytes);
}

void UcxTransport::Send(const RowMessage& message) {
  Contact(message.route.process);
  row_transfers_.Send(message);
}

void UcxTransport::Receive(const RowMessage& message) {
  Contact(message.route.process);
  row_transfers_.Receive(message);
}

void UcxTransport::Disconnect(int32_t process) {
  Peer* const peer = PeerOf(process);
  if (peer == nullptr || process == parts_.process) return;
  End(peer, Status::Unavailable("the connection to " + parts_.Name(*peer) + " was given up"), peer->generation + 1);
  if (!peer->joined || peer->gone) return;
  control_messages_.Hello(peer);  // so that it gives up what it has with us, now and not by our next exchange
  control_messages_.Lost(peer, Status::Ok(), true);
}

void UcxTransport::Probe(int32_t process) {
  Peer* const peer = PeerOf(process);
  if (peer == nullptr) return;
  for (const std::shared_ptr<Endpoint>& endpoint : peer->endpoints) {
    if (endpoint->handle == nullptr) continue;
    if (endpoint->asked == Clock::time_point{}) endpoint->asked = Clock::now();
    Outgoing* const probe = connections_.Compose(Kind::kProbe, 0);
    probe->header.connection = endpoint->connection;
    connections_.Send(peer, endpoint->nic_worker, endpoint->their_nic_worker, probe);
  }
}

bool UcxTransport::Silent(int32_t process) const {
  if (!IsProcess(process)) return false;
  const Peer& peer = parts_.peers[static_cast<size_t>(process)];
  const Clock::time_point before = Clock::now() - kAnswersWithin;
  return std::any_of(peer.endpoints.begin(), peer.endpoints.end(), [before](const std::shared_ptr<Endpoint>& endpoint) {
    return endpoint->asked != Clock::time_point{} && endpoint->asked <= before;
  });
}

void UcxTransport::End(Peer* peer, const Status& why, uint32_t generation) {
  row_transfers_.EndAll(peer, why);
  control_messages_.EndAll(peer);
  parts_.ReleaseAll(&peer->early);
  connections_.Begin(peer, generation);
}

void UcxTransport::Lose(Peer* peer, const Status& why, uint32_t generation) {
  End(peer, why, generation);
  peer->to.Close();  // nobody may be left who reads it; if somebody is, a greeting follows
  peer->why = why;
  if (peer->told) return;
  peer->told = true;
  SetDescription(peer->process, "", why.message);
  control_messages_.Lost(peer, why);
}

void UcxTransport::Join(Peer* peer, Addresses addresses) {
  if (phase_ >= Phase::kLeaving) return;
  const bool same = peer->joined && peer->addresses.incarnation == addresses.incarnation;
  if (same && !peer->gone) return;
  if (peer->joined && !same) {
    peer->told = peer->gone;
    Lose(peer, Status::Unavailable(parts_.Name(*peer) + " was restarted"), 0);
  }
  if (!same) {
    peer->endpoints.clear();
    peer->generation = 0;
    peer->addresses = std::move(addresses);
    peer->readable = CanRead(parts_.read_probe, peer->addresses.read_probe);
    peer->reads = false;
    peer->from.Close();
    peer->ring_tried = false;
    const auto theirs = static_cast<int32_t>(peer->addresses.nic_workers.size());
    for (int32_t pair = 0; pair < static_cast<int32_t>(parts_.nic_workers.size()) * theirs; ++pair) {
      for (const Connection connection : kConnections) {
        peer->endpoints.push_back(std::make_shared<Endpoint>(peer, pair / theirs, pair % theirs, connection, 0));
      }
    }
  }
  peer->joined = true;
  peer->gone = false;
  if (peer->contacted) Contact(peer->process);
  SetDescription(peer->process, parts_.Name(*peer), "");
  if (same && !peer->greeted) control_messages_.Hello(peer);  // it does not know what we gave up meanwhile
  control_messages_.OnJoined(peer);
  row_transfers_.OnJoined(peer);
  std::list<Arrival> early;
  early.swap(peer->early);
  for (const Arrival& arrival : early) Dispatch(arrival);
}

void UcxTransport::Disarm() {
  if (!armed_) return;
  armed_ = false;
  for (Peer& peer : parts_.peers) peer.from.Disarm();
}

// The process may be alive and not know of the loss. If it is dead, the greeting fails, and nothing follows.
void UcxTransport::OnFailure(const Connections::Failure& failure) {
  Peer* const peer = failure.peer;
  const Status why = Status::Unavailable("the connection to " + parts_.Name(*peer) +
                                         " failed: " + parts_.library->ucs_status_string(failure.status));
  const bool heard = peer->heard;
  Lose(peer, why, peer->generation + 1);
  if (heard && phase_ == Phase::kOpen) control_messages_.Hello(peer);
}

bool UcxTransport::Poll() {
  bool worked = false;
  Disarm();
  if (phase_ == Phase::kClosed) {
    worked |= row_transfers_.Deliver();
    worked |= control_messages_.Deliver(handler_.load());
    return worked;
  }
  for (const auto& nic_worker : parts_.nic_workers) {
    for (int i = 0; i < kPolls && nic_worker->Progress() != 0; ++i) worked = true;
  }
  TakeFromRings();
  worked |= TakeArrivals();
  for (const Connections::Failure& failure : connections_.TakeFailures()) {
    OnFailure(failure);
    worked = true;
  }
  worked |= row_transfers_.TakeRead();
  worked |= row_transfers_.Pump();
  worked |= row_transfers_.Deliver();
  worked |= control_messages_.Deliver(handler_.load());
  for (Peer& peer : parts_.peers) peer.to.Ring();
  return worked;
}

bool UcxTransport::Expecting() const {
  if (phase_ == Phase::kClosed) return false;
  return parts_.in_flight > 0 || row_transfers_.busy() || phase_ != Phase::kOpen;
}

bool UcxTransport::Arm() {
  if (phase_ == Phase::kOpen) {
    armed_ = true;
    for (Peer& peer : parts_.peers) {
      if (!peer.from.Arm()) return false;
    }
  }
  for (const auto& nic_worker : parts_.nic_workers) {
    if (!nic_worker->Arm()) return false;
  }
  return (phase_ == Phase::kOpen || phase_ == Phase::kClosed) && !row_transfers_.HasRead();
}

void UcxTransport::Tick(Clock::time_point now) {
  Handler* const handler = handler_.load();
  connections_.Tick();
  if (phase_ != Phase::kOpen) return;
  row_transfers_.Expire(now);
  row_transfers_.FindStalled();
  if (handler != nullptr) handler->OnTick(now);
  for (Peer& peer : parts_.peers) peer.to.Ring();
}

void UcxTransport::BeginClosing(std::chrono::milliseconds limit) {
  if (phase_ != Phase::kOpen) return;
  deadline_ = Clock::now() + limit;
  phase_ = Phase::kClosing;
  const Status why = Status::Unavailable("the program of " + parts_.Name(parts_.peers[static_cast<size_t>(process())]) +
                                         " has closed its network");
  if (Handler* const handler = handler_.load()) handler->OnClosed(why);
  for (Peer& peer : parts_.peers) row_transfers_.EndAll(&peer, why);
}

bool UcxTransport::Ended() {
  if (phase_ == Phase::kOpen) return false;
  const Handler* const handler = handler_.load();
  const bool busy = handler != nullptr && handler->Busy();
  const bool late = Clock::now() >= deadline_;
  if (phase_ == Phase::kClosing && (!busy || late)) {
    phase_ = Phase::kFlushing;
    connections_.Flush();
  }
  if (phase_ == Phase::kFlushing && (connections_.flushing() == 0 || late)) {
    phase_ = Phase::kLeaving;
    LeaveAll();
  }
  // What the pool reads into memory of others' takes no other process, so it ends.
  if (phase_ == Phase::kLeaving && !row_transfers_.reading()) {
    phase_ = Phase::kClosed;
    for (const Arrival& arrival : arrivals_) parts_.Release(arrival);
    for (const Arrival& arrival : from_rings_) parts_.Release(arrival);
    arrivals_.clear();
    from_rings_.clear();
    parts_.nic_workers.clear();  // and with them all connections
    for (Peer& peer : parts_.peers) peer.retired.clear();
    row_transfers_.Deliver();
  }
  return phase_ == Phase::kClosed && !busy;
}

// Ends all requests. From now on every request fails at once.
void UcxTransport::LeaveAll() {
  for (Peer& peer : parts_.peers) {
    if (peer.process == parts_.process) continue;
    peer.gone = true;
    peer.told = false;
    Lose(&peer, Status::Unavailable("fastjax's connections were closed"), peer.generation + 1);
  }
}

}  // namespace fastjax::network::ucx

std::shared_ptr<fastjax::JobTransport> fastjax::network::OpenTransport(const TransportOptions& options,
                                                                       std::string* wrong) {
  return ucx::UcxTransport::Open(options, wrong);
}
