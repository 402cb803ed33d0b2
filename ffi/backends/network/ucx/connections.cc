#include "backends/network/ucx/connections.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "backends/network/ucx/loop.h"

namespace fastjax::network::ucx {
namespace {

constexpr int32_t kQuietTicks = std::chrono::seconds{1} / Loop::kTick;
constexpr int32_t kMostTicks = std::chrono::seconds{3} / Loop::kTick;
// Generations of endpoints that stay open.
constexpr uint32_t kRetired = 8;

using Ended = std::function<void()>;

struct Counted {
  const Library* library;
  int64_t* count;
  Ended ended;
};

// Has the operation counted until it ends. Not an allocation that matters: this is for endings.
template <typename Operation>
void Count(const Library& library, int64_t* count, uint32_t flags, Ended ended, Operation operation) {
  auto* const counted = new Counted{&library, count, std::move(ended)};
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  param.cb.send = [](void* request, ucs_status_t, void* argument) {
    const std::unique_ptr<Counted> all(static_cast<Counted*>(argument));
    --*all->count;
    all->library->ucp_request_free(request);
    all->ended();
  };
  param.user_data = counted;
  if (UCS_PTR_IS_PTR(operation(&param))) {
    ++*count;
    return;
  }
  const std::unique_ptr<Counted> at_once(counted);
  at_once->ended();
}

}  // namespace

Outgoing* Connections::Compose(Kind kind, size_t length) {
  Outgoing* const outgoing = Take(&composing_, &free_);
  outgoing->connections = this;
  outgoing->header = Header{};
  outgoing->header.kind = kind;
  outgoing->header.connection = kind == Kind::kChunk ? Connection::kChunks : Connection::kControl;
  outgoing->length = length;
  if (outgoing->data.size() < length) outgoing->data.resize(length);
  return outgoing;
}

void Connections::Connect(const Peer& peer, int32_t nic_worker, int32_t their_nic_worker) {
  for (const Connection connection : kConnections)
    Connect(peer.endpoint(nic_worker, their_nic_worker, connection).get());
}

void Connections::Connect(Endpoint* endpoint) {
  if (endpoint->handle != nullptr || endpoint->failed) return;
  endpoint->connections = this;
  const auto failed = [](void* argument, ucp_ep_h, ucs_status_t status) {
    auto* const at = static_cast<Endpoint*>(argument);
    at->connections->Fail(at, status);
  };
  const std::string& address = endpoint->peer->addresses.nic_workers[static_cast<size_t>(endpoint->their_nic_worker)];
  const ucs_status_t status = parts_->nic_workers[static_cast<size_t>(endpoint->nic_worker)]->Connect(
      address, failed, endpoint, &endpoint->handle);
  if (status == UCS_OK) return;
  endpoint->handle = nullptr;
  Fail(endpoint, status);
}

void Connections::Fail(Endpoint* endpoint, ucs_status_t status) {
  if (endpoint->failed) return;
  endpoint->failed = true;
  broken_ = broken_ || endpoint->retired;
  if (endpoint->retired) return;
  failed_.push_back(
      {endpoint->peer->endpoint(endpoint->nic_worker, endpoint->their_nic_worker, endpoint->connection), status, 0, 0});
}

void Connections::Send(Peer* peer, int32_t nic_worker, int32_t their_nic_worker, Outgoing* outgoing) {
  outgoing->peer = peer;
  outgoing->endpoint = peer->endpoint(nic_worker, their_nic_worker, outgoing->header.connection);
  Endpoint* const endpoint = outgoing->endpoint.get();
  ++endpoint->in_flight;
  Move(&sent_, &composing_, outgoing->self);
  Connect(*peer, nic_worker, their_nic_worker);
  if (endpoint->handle == nullptr || endpoint->failed) return Finish(outgoing, UCS_ERR_NOT_CONNECTED);
  Header& header = outgoing->header;
  header.magic = kHeaderMagic;
  header.version = kHeaderVersion;
  header.from = parts_->process;
  header.to = peer->process;
  header.sender = parts_->incarnation;
  header.receiver = peer->addresses.incarnation;
  header.generation = peer->generation;
  header.nic_worker = static_cast<uint16_t>(nic_worker);
  header.sequence = endpoint->sent++;
  header.bytes = outgoing->length;
  header.hash = HashOf(parts_->secret, header);
  // Greetings make the connection, which tells us when the peer dies.
  if (header.kind != Kind::kHello &&
      peer->to.Send(header, static_cast<uint32_t>(their_nic_worker), outgoing->data.data())) {
    return Finish(outgoing, UCS_OK);
  }

  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = [](void* request, ucs_status_t status, void* argument) {
    auto* const sent = static_cast<Outgoing*>(argument);
    sent->connections->parts_->library->ucp_request_free(request);
    --sent->connections->parts_->in_flight;
    sent->connections->Finish(sent, status);
  };
  param.user_data = outgoing;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request = parts_->library->ucp_am_send_nbx(endpoint->handle, 0, &header, sizeof(header),
                                                                    outgoing->data.data(), outgoing->length, &param);
  if (UCS_PTR_IS_PTR(request)) {
    ++parts_->in_flight;
  } else {
    Finish(outgoing, UCS_PTR_STATUS(request));
  }
}

void Connections::Answer(Peer* peer, const Arrival& answered, Kind kind, Connection connection, uint64_t tag) {
  Outgoing* const message = Compose(kind, 0);
  message->header.connection = connection;
  message->header.tag = tag;
  message->header.number = answered.header.number;
  message->header.rows = answered.header.nic_worker;
  Send(peer, answered.nic_worker->index(), static_cast<int32_t>(answered.header.nic_worker), message);
}

void Connections::Finish(Outgoing* outgoing, ucs_status_t status) {
  Endpoint* const endpoint = outgoing->endpoint.get();
  --endpoint->in_flight;
  endpoint->stalled_ticks = 0;
  if (status != UCS_OK) {
    Fail(endpoint, status);
  } else if (outgoing->header.kind == Kind::kMessage) {
    parts_->counters.messages_sent += outgoing->header.rows == 0 ? 1 : 0;
    parts_->counters.bytes_sent += static_cast<int64_t>(outgoing->length);
  }
  outgoing->endpoint = nullptr;
  Move(&free_, &sent_, outgoing->self);
}

void Connections::Retire(const std::shared_ptr<Endpoint>& endpoint) {
  endpoint->retired = true;
  if (endpoint->handle == nullptr) return;
  if (endpoint->failed) return Close(endpoint);
  endpoint->peer->retired.push_back(endpoint);
  Count(
      *parts_->library, &parts_->in_flight, 0, [endpoint] { endpoint->flushed = true; },
      [&](const ucp_request_param_t* param) { return parts_->library->ucp_ep_flush_nbx(endpoint->handle, param); });
}

template <typename Condition>
void Connections::CloseRetired(Peer* peer, Condition condition) {
  peer->retired.remove_if([&](const std::shared_ptr<Endpoint>& endpoint) {
    const bool closes = condition(*endpoint);
    if (closes) Close(endpoint);
    return closes;
  });
}

// UCX may still tell of the endpoint until it is closed: it is kept so long.
void Connections::Close(const std::shared_ptr<Endpoint>& endpoint) {
  const ucp_ep_h handle = endpoint->handle;
  endpoint->handle = nullptr;
  Count(
      *parts_->library, &parts_->in_flight, UCP_EP_CLOSE_FLAG_FORCE, [endpoint] {},
      [&](const ucp_request_param_t* param) { return parts_->library->ucp_ep_close_nbx(handle, param); });
}

void Connections::Begin(Peer* peer, uint32_t generation) {
  peer->generation = generation;
  peer->heard = false;
  peer->greeted = false;
  for (auto& endpoint : peer->endpoints) {
    parts_->ReleaseAll(&endpoint->held);
    auto next = std::make_shared<Endpoint>(peer, endpoint->nic_worker, endpoint->their_nic_worker, endpoint->connection,
                                           generation);
    Retire(endpoint);
    endpoint = std::move(next);
  }
  // One that cannot be flushed stays until its peer goes on, or the system loses patience with it.
  CloseRetired(peer, [generation](const Endpoint& endpoint) {
    return endpoint.flushed && generation - endpoint.generation > kRetired;
  });
}

std::vector<Connections::Failure> Connections::TakeFailures() {
  std::vector<Failure> failures;
  if (std::exchange(broken_, false)) {
    for (Peer& peer : parts_->peers) CloseRetired(&peer, [](const Endpoint& endpoint) { return endpoint.failed; });
  }
  if (failed_.empty()) return failures;
  const auto over = [&failures](const Failed& each) {
    Peer* const peer = each.endpoint->peer;
    if (each.endpoint->retired) return true;
    const bool open = std::any_of(peer->endpoints.begin(), peer->endpoints.end(), [](const auto& endpoint) {
      return endpoint->handle != nullptr && !endpoint->failed;
    });
    if (open && each.quiet < kQuietTicks && each.age < kMostTicks) return false;
    const bool known =
        std::any_of(failures.begin(), failures.end(), [peer](const Failure& failure) { return failure.peer == peer; });
    if (!known) failures.push_back({peer, each.status});
    return true;
  };
  failed_.erase(std::remove_if(failed_.begin(), failed_.end(), over), failed_.end());
  return failures;
}

void Connections::Tick() {
  for (Failed& each : failed_) {
    each.quiet = each.endpoint->peer->heard_lately ? 0 : each.quiet + 1;
    ++each.age;
  }
  for (Peer& peer : parts_->peers) peer.heard_lately = false;
}

void Connections::Flush() {
  for (const Peer& peer : parts_->peers) {
    for (const auto& endpoint : peer.endpoints) {
      if (endpoint->handle == nullptr || endpoint->failed) continue;
      Count(
          *parts_->library, &flushing_, 0, [] {},
          [&](const ucp_request_param_t* param) { return parts_->library->ucp_ep_flush_nbx(endpoint->handle, param); });
    }
  }
}

}  // namespace fastjax::network::ucx
