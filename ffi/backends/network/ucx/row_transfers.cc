#include "backends/network/ucx/row_transfers.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace fastjax::network::ucx {
namespace {

constexpr size_t kShort = 8192;
constexpr size_t kLeastChunk = 8192;
constexpr int64_t kInFlight = 8;  // messages that an endpoint may have in UCX's hands when a chunk is added
// A NIC may have two windows under way for each send of the earliest stage: with one, it would have nothing to do while
// the receiver of that stage still receives from another one.
constexpr int64_t kWindows = 2;
constexpr int64_t kMarks = 4;  // chunks of a window that ask to be acknowledged, with all before them
constexpr int kSlotBits = 24;
constexpr std::chrono::seconds kDropFor{60};
constexpr size_t kMostRules = 1024;
constexpr std::chrono::hours kUnmetFor{1};  // longer than an exchange leaves any of its messages waiting
// Below this, waking the pool costs more than it saves.
constexpr size_t kPooledBytes = 64 << 10;

constexpr size_t kWakeBytes = 1 << 20;

// A connection that nothing has gone through for so many ticks is stalled.
constexpr int32_t kStalledTicks = 3;

// Ticks after which a send that others go before sends a chunk all the same: both sides then see that it moves.
constexpr int32_t kPatientTicks = 20;

// Moves `bytes` between `data` and the request's next bytes. There are as many.
template <typename Copy>
void Walk(Request* request, size_t bytes, Copy copy) {
  size_t at = 0;
  while (at < bytes) {
    const Iov& iov = request->iovs[request->iov];
    const size_t step = std::min(bytes - at, iov.bytes - request->within);
    if (step > 0) copy(static_cast<std::byte*>(iov.data) + request->within, at, step);
    at += step;
    request->within += step;
    if (request->within == iov.bytes) {
      ++request->iov;
      request->within = 0;
    }
  }
  request->moved += bytes;
}

// Some chunks to a window: the receiver acknowledges the first while the last is on its way.
size_t ChunkOf(int64_t window) { return std::clamp(static_cast<size_t>(window / kMarks), kLeastChunk, kMostData); }

bool IsStalled(const Endpoint& endpoint) { return endpoint.failed || endpoint.stalled_ticks >= kStalledTicks; }

void Gather(Request* request, std::byte* to, size_t bytes) {
  Walk(request, bytes, [to](const std::byte* from, size_t at, size_t step) { std::memcpy(to + at, from, step); });
}

void Scatter(Request* request, const void* from, size_t bytes) {
  const auto* const data = static_cast<const std::byte*>(from);
  Walk(request, bytes, [data](std::byte* to, size_t at, size_t step) { std::memcpy(to, data + at, step); });
}

}  // namespace

Request* RowTransfers::Make(std::list<Request> Peer::* list, const RowMessage& message) {
  Status wrong = Unreachable(message.route.process);
  if (!wrong.ok()) {
    done_.push_back({message.listener, message.cookie, std::move(wrong)});
    return nullptr;
  }
  Peer* const peer = &parts_->peers[static_cast<size_t>(message.route.process)];
  peer->told = false;
  uint64_t slot = slots_.size();
  if (!free_.empty()) slot = free_.front().number & ((uint64_t{1} << kSlotBits) - 1);
  Request* const request = Take(&(peer->*list), &free_);
  if (slot == slots_.size()) slots_.push_back(request);
  request->number = ++made_ << kSlotBits | slot;
  request->list = &(peer->*list);
  request->peer = peer;
  request->given_up = Status::Ok();
  static_cast<RowMessage&>(*request) = message;
  static_cast<Progress&>(*request) = {};
  for (int32_t i = 0; i < message.count; ++i) request->bytes += message.iovs[i].bytes;
  request->order = message.listener->order();
  request->stage = message.listener->stage(message.cookie);
  request->window = message.listener->window();
  return request;
}

// Finds a request by the number that another process has sent. The request may have ended, or never have existed.
Request* RowTransfers::Find(uint64_t number, const std::list<Request>* list) const {
  const uint64_t slot = number & ((uint64_t{1} << kSlotBits) - 1);
  if (slot >= slots_.size()) return nullptr;
  Request* const request = slots_[slot];
  return request->number == number && request->list == list ? request : nullptr;
}

Status RowTransfers::Unreachable(int32_t process) const {
  if (process < 0 || static_cast<size_t>(process) >= parts_->peers.size() || process == parts_->process) {
    return Status::Invalid("no other process " + std::to_string(process) + ": there are " +
                           std::to_string(parts_->peers.size()) + ", and this one is " +
                           std::to_string(parts_->process));
  }
  const Peer& peer = parts_->peers[static_cast<size_t>(process)];
  return peer.gone ? peer.why : Status::Ok();
}

Endpoint* RowTransfers::EndpointOf(const Request& request) const {
  const Peer& peer = *request.peer;
  return peer
      .endpoint(request.route.local_rail % static_cast<int32_t>(parts_->nic_workers.size()),
                request.route.remote_rail % static_cast<int32_t>(peer.addresses.nic_workers.size()),
                Connection::kChunks)
      .get();
}

void RowTransfers::Connect(const Request& request) {
  const Endpoint* const endpoint = EndpointOf(request);
  connections_->Connect(*request.peer, endpoint->nic_worker, endpoint->their_nic_worker);
}

void RowTransfers::Advance(Request* request, std::list<Request>* to) {
  Move(to, request->list, request->self);
  request->list = to;
}

void RowTransfers::Send(const RowMessage& message) {
  Request* const request = Make(&Peer::waiting, message);
  if (request != nullptr && request->peer->joined) Start(request);
}

void RowTransfers::Start(Request* send) {
  Peer* const peer = send->peer;
  const Endpoint* const endpoint = EndpointOf(*send);
  const bool whole = send->bytes <= kShort;
  const bool readable = !whole && peer->reads && send->count <= kMostIovs;
  const size_t words = readable ? OfferWords(send->count) * sizeof(uint64_t) : 0;
  Outgoing* const message = connections_->Compose(whole ? Kind::kRows : Kind::kOffer, whole ? send->bytes : words);
  message->header.tag = send->tag;
  message->header.rows = send->bytes;
  message->header.number = send->number;
  if (whole) Gather(send, message->data.data(), send->bytes);
  if (readable) {
    const uint64_t number = parts_->incarnation ^ send->number;
    WriteOffer(parts_->secret, number, send->lease, send->iovs, send->count, message->data.data());
    send->lease.Set(number);
  }
  Advance(send, &peer->offered);
  connections_->Send(peer, endpoint->nic_worker, endpoint->their_nic_worker, message);
  if (!whole) return;
  parts_->counters.bytes_sent += static_cast<int64_t>(send->bytes);
  End(send, Status::Ok());
}

void RowTransfers::Receive(const RowMessage& message) {
  Request* const request = Make(&Peer::receives, message);
  if (request == nullptr) return;
  Peer& peer = *request->peer;
  if (peer.joined) Connect(*request);
  const auto met = std::find_if(peer.unmet.begin(), peer.unmet.end(),
                                [&](const Arrival& arrival) { return arrival.header.tag == message.tag; });
  if (met == peer.unmet.end()) return;
  const Arrival arrival = *met;
  peer.unmet.erase(met);
  Meet(request, arrival);
}

void RowTransfers::OnArrival(Peer* peer, const Arrival& arrival) {
  switch (arrival.header.kind) {
    case Kind::kGrant:
      OnGrant(peer, arrival.header);
      break;
    case Kind::kTaken:
      OnTaken(peer, arrival.header);
      break;
    case Kind::kChunk:
      OnChunk(peer, arrival);
      if (arrival.header.tag > 0) Answer(peer, arrival, Kind::kAck, arrival.header.tag);
      break;
    case Kind::kAck:
      OnAck(*peer, arrival);
      break;
    default: {
      if (arrival.header.kind == Kind::kOffer && arrival.length > 0 &&
          !(peer->readable && Reading::Genuine(parts_->secret, arrival.data, arrival.length, arrival.header.rows))) {
        ++parts_->counters.refused;
        break;
      }
      const uint64_t tag = arrival.header.tag;
      const auto met = std::find_if(peer->receives.begin(), peer->receives.end(),
                                    [tag](const Request& request) { return request.tag == tag; });
      if (met != peer->receives.end()) return Meet(&*met, arrival);
      if (Dropped(tag)) return TurnAway(peer, arrival);
      peer->unmet.push_back(arrival);
      peer->unmet.back().since = Clock::now();
      return;
    }
  }
  parts_->Release(arrival);
}

void RowTransfers::Meet(Request* receive, const Arrival& arrival) {
  Peer* const peer = receive->peer;
  const Header& header = arrival.header;
  const bool whole = header.kind == Kind::kRows;
  if (header.rows != receive->bytes || (whole && header.rows != arrival.length)) {
    End(receive, Status::Internal(parts_->Name(*peer) + " sent " + std::to_string(header.rows) + " bytes where " +
                                  std::to_string(receive->bytes) + " were expected"));
    return TurnAway(peer, arrival);
  }
  if (!whole && arrival.length > 0) return Read(receive, arrival);
  if (!whole) {
    Advance(receive, &peer->filling);
    ++busy_;
    return Answer(peer, arrival, Kind::kGrant, receive->number);
  }
  Scatter(receive, arrival.data, arrival.length);
  parts_->Release(arrival);
  parts_->counters.bytes_received += static_cast<int64_t>(receive->bytes);
  End(receive, Status::Ok());
}

// The sender's memory, by the pool where there is much of it.
void RowTransfers::Read(Request* receive, const Arrival& arrival) {
  Peer* const peer = receive->peer;
  Advance(receive, &peer->reading);
  receive->reading.Prepare(peer->addresses.read_probe, arrival.data, receive->iovs, receive->count);
  receive->offer = arrival;
  receive->offer.data = nullptr;
  receive->offer.memory = nullptr;
  parts_->Release(arrival);
  ++reading_;
  if (receive->bytes < kPooledBytes) return short_.push_back(receive);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++unread_;
    unread_large_ += receive->bytes >= kWakeBytes ? 1 : 0;
  }
  CopyPool::Get().Run(receive->reading.job(), receive->order, [this, receive] { WasRead(receive); });
}

// On a thread of the pool. The transport's would take the processor from it each time: not for each of many short
// reads, of which the last is soon there.
void RowTransfers::WasRead(Request* receive) {
  const std::lock_guard<std::mutex> lock(mutex_);
  read_.push_back(receive);
  read_since_wake_ += receive->bytes;
  unread_large_ -= receive->bytes >= kWakeBytes ? 1 : 0;
  if (--unread_ > 0 && unread_large_ == 0 && read_since_wake_ < kWakeBytes) return;
  read_since_wake_ = 0;
  wake_();  // with the lock: until it is given back, the transport is there
}

bool RowTransfers::HasRead() {
  if (!short_.empty()) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  return !read_.empty();
}

bool RowTransfers::TakeRead() {
  if (reading_ == 0) return false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken_.swap(read_);
  }
  readings_.clear();
  for (Request* const receive : short_) readings_.push_back(&receive->reading);
  Reading::Run(readings_.data(), readings_.size());
  for (Request* const receive : taken_) readings_.push_back(&receive->reading);
  Reading::Check(readings_.data(), readings_.size());
  taken_.insert(taken_.end(), short_.begin(), short_.end());
  short_.clear();
  const bool any = !taken_.empty();
  for (Request* const receive : taken_) {
    --reading_;
    ReadDone(receive);
  }
  taken_.clear();
  return any;
}

void RowTransfers::ReadDone(Request* receive) {
  Peer* const peer = receive->peer;
  if (!receive->given_up.ok()) return End(receive, std::move(receive->given_up));
  if (!receive->reading.good()) {
    return End(receive, Status::Unavailable(parts_->Name(*peer) + " has ended, or given up what it was sending"));
  }
  Answer(peer, receive->offer, Kind::kTaken, 1);
  parts_->counters.bytes_received += static_cast<int64_t>(receive->bytes);
  End(receive, Status::Ok());
}

// Refuses an offer, so that its sender need not wait.
void RowTransfers::TurnAway(Peer* peer, const Arrival& arrival) {
  if (arrival.header.kind == Kind::kOffer) Answer(peer, arrival, Kind::kTaken, 0);
  parts_->Release(arrival);
}

void RowTransfers::OnGrant(Peer* peer, const Header& header) {
  Request* const send = Find(header.number, &peer->offered);
  if (send == nullptr) return;
  send->granted = header.tag;
  Advance(send, &peer->streaming);
  ++busy_;
}

void RowTransfers::OnTaken(Peer* peer, const Header& header) {
  Request* const send = Find(header.number, &peer->offered);
  if (send == nullptr) return;
  if (header.tag == 1) parts_->counters.bytes_sent += static_cast<int64_t>(send->bytes);
  End(send, Status::Ok());
}

void RowTransfers::OnChunk(Peer* peer, const Arrival& arrival) {
  Request* const receive = Find(arrival.header.number, &peer->filling);
  if (receive == nullptr) return;
  if (arrival.header.rows != receive->moved || arrival.length > receive->bytes - receive->moved) {
    return End(receive, Status::Internal(parts_->Name(*peer) + " sent " + std::to_string(arrival.length) +
                                         " bytes from byte " + std::to_string(arrival.header.rows) + " on where " +
                                         std::to_string(receive->bytes - receive->moved) + " were left, from " +
                                         std::to_string(receive->moved) + " on"));
  }
  Scatter(receive, arrival.data, arrival.length);
  if (receive->moved < receive->bytes) return receive->listener->OnMoved(receive->cookie);
  parts_->counters.bytes_received += static_cast<int64_t>(receive->bytes);
  End(receive, Status::Ok());
}

void RowTransfers::OnAck(const Peer& peer, const Arrival& arrival) {
  const Header& header = arrival.header;
  if (header.rows >= parts_->nic_workers.size() || header.nic_worker >= peer.addresses.nic_workers.size()) return;
  Endpoint* const endpoint =
      peer.endpoint(static_cast<int32_t>(header.rows), header.nic_worker, Connection::kChunks).get();
  const auto bytes = static_cast<int64_t>(header.tag);
  if (bytes > endpoint->marked || bytes <= endpoint->acknowledged) return;
  const bool counts = !IsStalled(*endpoint) && unacknowledged_.size() == parts_->nic_workers.size();
  if (counts) unacknowledged_[static_cast<size_t>(endpoint->nic_worker)] -= bytes - endpoint->acknowledged;
  endpoint->acknowledged = bytes;
  endpoint->stalled_ticks = 0;
  if (!counts) CountUnacknowledged();
}

void RowTransfers::CountUnacknowledged() {
  unacknowledged_.assign(parts_->nic_workers.size(), 0);
  for (const Peer& peer : parts_->peers) {
    for (const auto& endpoint : peer.endpoints) {
      if (IsStalled(*endpoint)) continue;
      unacknowledged_[static_cast<size_t>(endpoint->nic_worker)] += endpoint->marked - endpoint->acknowledged;
    }
  }
}

bool RowTransfers::IsFree(const Request& send) const {
  const Endpoint* const endpoint = EndpointOf(send);
  return endpoint->in_flight < kInFlight && !endpoint->failed;
}

bool RowTransfers::CanSend(const Request& send) const {
  const Endpoint* const endpoint = EndpointOf(send);
  const auto nic = static_cast<size_t>(endpoint->nic_worker);
  const int64_t share = unacknowledged_[nic] / std::max(nics_[nic].sends, 1) / kWindows;
  return IsFree(send) && share < send.window && endpoint->marked - endpoint->acknowledged < send.window;
}

void RowTransfers::SendChunk(Request* send) {
  Peer* const peer = send->peer;
  Endpoint* const endpoint = EndpointOf(*send);
  send->passed_by = 0;
  send->turn = ++turns_;
  const size_t length = std::min(ChunkOf(send->window), send->bytes - send->moved);
  Outgoing* const message = connections_->Compose(Kind::kChunk, length);
  endpoint->chunk_bytes += static_cast<int64_t>(length);
  const int64_t unmarked = endpoint->chunk_bytes - endpoint->marked;
  if (unmarked >= send->window / kMarks) {
    endpoint->marked = endpoint->chunk_bytes;
    message->header.tag = static_cast<uint64_t>(endpoint->marked);
    unacknowledged_[static_cast<size_t>(endpoint->nic_worker)] += unmarked;
  }
  message->header.rows = send->moved;
  message->header.number = send->granted;
  Gather(send, message->data.data(), length);
  connections_->Send(peer, endpoint->nic_worker, endpoint->their_nic_worker, message);
  if (send->moved < send->bytes) {
    return send->listener->OnMoved(send->cookie);
  }
  parts_->counters.bytes_sent += static_cast<int64_t>(send->bytes);
  End(send, Status::Ok());
}

// What was sent, or is to be sent, by a connection that is stalled, or has failed, does not count.
void RowTransfers::FindFirst() {
  nics_.assign(parts_->nic_workers.size(), Nic{});
  if (unacknowledged_.size() != nics_.size()) CountUnacknowledged();
  for (const Peer& peer : parts_->peers) {
    for (const Request& send : peer.streaming) {
      const Endpoint* const endpoint = EndpointOf(send);
      if (IsStalled(*endpoint)) continue;
      int64_t& first = NicOf(send).first;
      first = std::min(first, send.order);
    }
  }
}

// Those that may go on, by stage. Within a stage, the one whose last chunk is the longest ago comes first.
void RowTransfers::FindNext() {
  next_.clear();
  for (Peer& peer : parts_->peers) {
    for (Request& send : peer.streaming) {
      if (GoesFirst(send)) next_.push_back(&send);
    }
  }
  std::sort(next_.begin(), next_.end(), [](const Request* a, const Request* b) {
    return std::tie(a->stage, a->turn) < std::tie(b->stage, b->turn);
  });
  for (const Request* const send : next_) {
    Nic& nic = NicOf(*send);
    if (IsStalled(*EndpointOf(*send))) continue;
    if (nic.sends == 0) nic.stage = send->stage;
    if (nic.stage == send->stage) ++nic.sends;
  }
}

// A later launch's sends wait for those of an earlier one through the same NIC. Nothing waits in a cycle, whatever the
// orders of different processes are: what is asked for waits for this process's NICs only, and moves in their order.
bool RowTransfers::Pump() {
  if (busy_ == 0) return false;
  FindFirst();
  bool any = SendOverdue();
  FindNext();
  // A chunk each, so that none of a stage waits for the others to be whole. Later stages go where the earliest cannot.
  for (Request* const send : next_) {
    Nic& nic = NicOf(*send);
    if (nic.sent && send->stage != nic.stage) continue;
    if (!CanSend(*send)) continue;
    SendChunk(send);
    nic.sent = any = true;
  }
  return any;
}

bool RowTransfers::SendOverdue() {
  bool any = false;
  for (Peer& peer : parts_->peers) {
    for (auto it = peer.streaming.begin(); it != peer.streaming.end();) {
      Request* const send = &*it++;
      if (send->passed_by < kPatientTicks || !IsFree(*send)) continue;
      SendChunk(send);
      any = true;
    }
  }
  return any;
}

void RowTransfers::FindStalled() {
  FindFirst();
  for (Peer& peer : parts_->peers) {
    for (Request& send : peer.streaming) send.passed_by = GoesFirst(send) ? 0 : send.passed_by + 1;
    for (const auto& endpoint : peer.endpoints) {
      const bool waits = endpoint->in_flight >= kInFlight || endpoint->acknowledged < endpoint->marked;
      endpoint->stalled_ticks = waits ? std::min(endpoint->stalled_ticks + 1, kStalledTicks) : 0;
    }
  }
  CountUnacknowledged();
}

void RowTransfers::End(Request* request, Status status) {
  if (request->list == &request->peer->filling || request->list == &request->peer->streaming) --busy_;
  request->lease.Clear();
  done_.push_back({request->listener, request->cookie, std::move(status)});
  Advance(request, &free_);
}

void RowTransfers::EndAll(Peer* peer, const Status& why) {
  for (auto* list : {&peer->waiting, &peer->offered, &peer->streaming, &peer->receives, &peer->filling}) {
    while (!list->empty()) End(&list->front(), why);
  }
  for (Request& request : peer->reading) request.given_up = why;
  parts_->ReleaseAll(&peer->unmet);
}

void RowTransfers::OnJoined(Peer* peer) {
  while (!peer->waiting.empty()) Start(&peer->waiting.front());
  for (const Request& request : peer->receives) Connect(request);
}

void RowTransfers::Cancel(const Listener* listener) {
  for (Peer& peer : parts_->peers) {
    for (auto it = peer.receives.begin(); it != peer.receives.end();) {
      Request* const request = &*it++;
      if (request->listener == listener) End(request, Status::Unavailable("the receive was cancelled"));
    }
  }
}

void RowTransfers::Drop(uint64_t tag, uint64_t mask) {
  if (rules_.size() == kMostRules) rules_.pop_front();
  rules_.push_back({tag & mask, mask, Clock::now() + kDropFor});
  for (Peer& peer : parts_->peers) {
    for (auto it = peer.unmet.begin(); it != peer.unmet.end();) {
      if ((it->header.tag & mask) != (tag & mask)) {
        ++it;
        continue;
      }
      TurnAway(&peer, *it);
      it = peer.unmet.erase(it);
    }
  }
}

void RowTransfers::Expire(Clock::time_point now) {
  for (Peer& peer : parts_->peers) {
    while (!peer.unmet.empty() && now - peer.unmet.front().since > kUnmetFor) {
      TurnAway(&peer, peer.unmet.front());
      peer.unmet.pop_front();
    }
  }
}

bool RowTransfers::Dropped(uint64_t tag) {
  if (rules_.empty()) return false;
  const Clock::time_point now = Clock::now();
  while (!rules_.empty() && rules_.front().until < now) rules_.pop_front();
  return std::any_of(rules_.begin(), rules_.end(), [tag](const Rule& rule) { return (tag & rule.mask) == rule.tag; });
}

bool RowTransfers::Deliver() {
  if (done_.empty()) return false;
  telling_.swap(done_);
  for (const Done& done : telling_) done.listener->OnDone(done.cookie, done.status);
  telling_.clear();
  return true;
}

}  // namespace fastjax::network::ucx
