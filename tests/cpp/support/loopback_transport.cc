#include "support/loopback_transport.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "support/check.h"

namespace fastjax::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kTick{20};

size_t Bytes(const Iov* iovs, int32_t count) {
  size_t bytes = 0;
  for (int32_t i = 0; i < count; ++i) bytes += iovs[i].bytes;
  return bytes;
}

// Byte by byte where iovs do not agree: no cleverness that could hide a mistake of the code under test.
void Gather(const Iov* iovs, int32_t count, std::vector<std::byte>* out) {
  for (int32_t i = 0; i < count; ++i) {
    const auto* data = static_cast<const std::byte*>(iovs[i].data);
    out->insert(out->end(), data, data + iovs[i].bytes);
  }
}

void Scatter(const std::vector<std::byte>& data, const Iov* iovs, int32_t count) {
  size_t at = 0;
  for (int32_t i = 0; i < count && at < data.size(); ++i) {
    const size_t bytes = std::min(iovs[i].bytes, data.size() - at);
    if (bytes > 0) std::memcpy(iovs[i].data, data.data() + at, bytes);
    at += bytes;
  }
}

}  // namespace

// A send or a receive.
struct LoopbackNetwork::Request {
  int32_t process;
  bool sends;
  Route route;
  uint64_t tag;
  const Iov* iovs;
  int32_t count;
  size_t bytes;  // of the iovs
  Listener* listener;
  int64_t cookie;
  bool ended = false;
  bool frozen = false;
};

// A message in flight, in the node of its receiver.
struct LoopbackNetwork::Flight {
  std::shared_ptr<Request> send;
  std::shared_ptr<Request> receive;  // once it was met
  std::vector<std::byte> eager;
  bool is_eager = false;
  int64_t damage = 0;
};

struct LoopbackNetwork::Node {
  struct Ended {
    Listener* listener;
    int64_t cookie;
    Status status;
  };
  // A message, or news.
  struct Arrived {
    enum class Kind : uint8_t { kMessage, kLost, kRenewed } kind;
    int32_t process;
    std::vector<std::byte> data;
    Status news;
  };
  int32_t process = 0;
  std::unique_ptr<LoopbackTransport> transport;
  std::thread thread;
  std::condition_variable wake;
  std::deque<std::function<void()>> tasks;
  std::deque<Arrived> messages;
  std::deque<Ended> ended;
  std::list<std::shared_ptr<Request>> receives;  // not met
  std::deque<Flight> unexpected;
  std::deque<Flight> met;
  std::vector<std::shared_ptr<Request>> open;
  std::vector<std::pair<uint64_t, uint64_t>> dropped;
  std::vector<bool> silent;  // by process: has not answered the last probe
  Handler* handler = nullptr;
  int64_t damage_next = 0;
  bool busy = false;  // with something it was told
  bool closing = false;
  bool closed = false;
  steady_clock::time_point ticked = steady_clock::now();
};

class LoopbackNetwork::LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(LoopbackNetwork* network, int32_t process) : network_(*network), process_(process) {}

  int32_t process() const override { return process_; }
  int32_t processes() const override { return network_.options_.processes; }
  void SetHandler(Handler* handler) override {
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    node().handler = handler;
  }
  bool Post(std::function<void()> task) override {
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    if (node().closed) return false;
    node().tasks.push_back(std::move(task));
    node().wake.notify_one();
    return true;
  }
  uint64_t KeyedHash(const void* data, size_t bytes) const override {
    uint64_t hash = 14695981039346656037U;
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211U;
    return hash;
  }
  std::string Describe(int32_t process) const override {
    return "process " + std::to_string(process) + " (host " + std::string(1, static_cast<char>('a' + process)) + ")";
  }

  void SendMessage(int32_t process, const void* data, size_t bytes) override {
    CheckThread();
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    if (!network_.Reaches(process_, process)) return;
    const auto* begin = static_cast<const std::byte*>(data);
    Node& to = *network_.nodes_[process];
    to.messages.push_back({Node::Arrived::Kind::kMessage, process_, std::vector<std::byte>(begin, begin + bytes), {}});
    to.wake.notify_one();
  }

  void Send(const Route& route, uint64_t tag, const Iov* iovs, int32_t count, Listener* listener,
            int64_t cookie) override {
    CheckThread();
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    Flight flight;
    flight.send = Open(true, route, tag, iovs, count, listener, cookie);
    flight.damage = std::exchange(node().damage_next, 0);
    flight.is_eager = flight.send->bytes <= network_.options_.eager_bytes;
    if (flight.is_eager) {
      Gather(iovs, count, &flight.eager);
      network_.End(flight.send, Status::Ok());
    }
    Node& to = *network_.nodes_[route.process];
    for (const auto& [value, mask] : to.dropped) {
      if ((tag & mask) != (value & mask) || !network_.Reaches(process_, route.process)) continue;
      network_.End(flight.send, Status::Ok());
      return;
    }
    to.unexpected.push_back(std::move(flight));
    network_.Meet(&to);
    to.wake.notify_one();
  }

  void Receive(const Route& route, uint64_t tag, const Iov* iovs, int32_t count, Listener* listener,
               int64_t cookie) override {
    CheckThread();
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    node().receives.push_back(Open(false, route, tag, iovs, count, listener, cookie));
    network_.Meet(&node());
    node().wake.notify_one();
  }

  void Cancel(Listener* listener) override {
    CheckThread();
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    node().receives.remove_if([&](const auto& request) {
      if (request->listener != listener) return false;
      network_.End(request, Status::Unavailable("cancelled"));
      return true;
    });
  }

  void Disconnect(int32_t process) override {
    CheckThread();
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    ++network_.disconnects_;
    node().silent[static_cast<size_t>(process)] = false;
    const bool reaches = network_.Reaches(process_, process);
    network_.EndAllBetween(process_, process, "disconnected", reaches);
    if (!reaches) return;
    network_.Tell(&node(), process, Status::Ok(), true);
    network_.Tell(network_.nodes_[process].get(), process_, Status::Unavailable(Describe(process_) + " disconnected"),
                  true);
  }

  void Probe(int32_t process) override {
    CheckThread();
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    ++network_.probes_;
    node().silent[static_cast<size_t>(process)] = !network_.Reaches(process_, process);
  }

  bool Silent(int32_t process) const override {
    CheckThread();
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    return node().silent[static_cast<size_t>(process)];
  }

  void Drop(uint64_t tag, uint64_t mask) override {
    CheckThread();
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    node().dropped.emplace_back(tag, mask);
    auto& unexpected = node().unexpected;
    for (auto it = unexpected.begin(); it != unexpected.end();) {
      if ((it->send->tag & mask) != (tag & mask) || !network_.Reaches(it->send->process, process_)) {
        ++it;
        continue;
      }
      network_.End(it->send, Status::Ok());
      it = unexpected.erase(it);
    }
  }

 private:
  Node& node() const { return *network_.nodes_[process_]; }
  void CheckThread() const { CHECK(std::this_thread::get_id() == node().thread.get_id()); }
  std::shared_ptr<Request> Open(bool sends, const Route& route, uint64_t tag, const Iov* iovs, int32_t count,
                                Listener* listener, int64_t cookie) {
    CHECK_NE(route.process, process_);
    auto request = std::make_shared<Request>(
        Request{process_, sends, route, tag, iovs, count, Bytes(iovs, count), listener, cookie});
    node().open.push_back(request);
    const int64_t of_rail = std::count_if(node().open.begin(), node().open.end(), [&](const auto& other) {
      return other->sends == sends && other->route.local_rail == route.local_rail;
    });
    std::atomic<int64_t>& most = network_.most_[sends ? 1 : 0];
    most = std::max(most.load(), of_rail);
    return request;
  }

  LoopbackNetwork& network_;
  const int32_t process_;
};

LoopbackNetwork::LoopbackNetwork(const LoopbackOptions& options)
    : options_(options), random_(options.seed), cut_(static_cast<size_t>(options.processes), false) {
  for (int32_t process = 0; process < options.processes; ++process) {
    nodes_.push_back(std::make_unique<Node>());
    nodes_.back()->process = process;
    nodes_.back()->silent.resize(static_cast<size_t>(options.processes), false);
    nodes_.back()->transport = std::make_unique<LoopbackTransport>(this, process);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& node : nodes_) node->thread = std::thread([this, at = node->process] { Loop(at); });
}

LoopbackNetwork::~LoopbackNetwork() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    for (const auto& node : nodes_) node->wake.notify_all();
  }
  for (const auto& node : nodes_) node->thread.join();
}

Transport* LoopbackNetwork::transport(int32_t process) { return nodes_[process]->transport.get(); }

void LoopbackNetwork::RunOn(int32_t process, const std::function<void()>& task) {
  std::mutex mutex;
  std::condition_variable changed;
  bool ran = false;
  const bool posted = transport(process)->Post([&] {
    task();
    const std::lock_guard<std::mutex> lock(mutex);
    ran = true;
    changed.notify_all();
  });
  if (!posted) return task();
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return ran; });
}

void LoopbackNetwork::Loop(int32_t process) {
  Node* const node = nodes_[process].get();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    while (!stopping_ && LoopOnce(node, &lock)) {
    }
    if (!stopping_) node->wake.wait_for(lock, kTick);
  }
}

// Does one thing, any of those there are; false when there is nothing to do.
bool LoopbackNetwork::LoopOnce(Node* node, std::unique_lock<std::mutex>* lock) {
  const auto now = steady_clock::now();
  if (now - node->ticked >= kTick) {
    node->ticked = now;
    if (crawl_) TellMoved(node->process, lock);
    if (Handler* const handler = node->handler; handler != nullptr) {
      lock->unlock();
      handler->OnTick(now);
      lock->lock();
    }
  }
  std::vector<size_t> arriving;
  for (size_t i = 0; i < node->met.size() && !hold_; ++i) {
    if (Reaches(node->met[i].send->process, node->process) && !IsFrozen(node->met[i])) arriving.push_back(i);
    if (!options_.reorder && !arriving.empty()) break;
  }
  const size_t kinds[] = {arriving.size(), node->ended.size(), node->tasks.size(),
                          node->handler == nullptr ? 0 : node->messages.size()};
  size_t kind = random_() % 4;
  for (size_t tries = 0; tries < 4 && kinds[kind] == 0; ++tries) kind = (kind + 1) % 4;
  if (kinds[kind] == 0) {
    node->closed = node->closed || (node->closing && (node->handler == nullptr || !node->handler->Busy()));
    return false;
  }
  if (kind == 0) {
    Unpack(node, arriving[random_() % arriving.size()]);
    return true;
  }
  std::function<void()> task;
  if (kind == 1) {
    const size_t at = options_.reorder ? random_() % node->ended.size() : 0;
    const Node::Ended ended = node->ended[at];
    node->ended.erase(node->ended.begin() + static_cast<std::ptrdiff_t>(at));
    task = [ended] { ended.listener->OnDone(ended.cookie, ended.status); };
  } else if (kind == 2) {
    task = std::move(node->tasks.front());
    node->tasks.pop_front();
  } else {
    task = [handler = node->handler, arrived = std::move(node->messages.front())] {
      if (arrived.kind == Node::Arrived::Kind::kLost) return handler->OnLost(arrived.process, arrived.news);
      if (arrived.kind == Node::Arrived::Kind::kRenewed) return handler->OnRenewed(arrived.process, arrived.news);
      handler->OnMessage(arrived.process, arrived.data.data(), arrived.data.size());
    };
    node->messages.pop_front();
  }
  node->busy = true;
  lock->unlock();
  task();
  task = nullptr;
  lock->lock();
  node->busy = false;
  return true;
}

// Tells the process's listeners, on its thread, of what is in flight.
void LoopbackNetwork::TellMoved(int32_t process, std::unique_lock<std::mutex>* lock) {
  std::vector<std::pair<Listener*, int64_t>> moved;
  for (const auto& node : nodes_) {
    for (const Flight& flight : node->met) {
      for (const auto& request : {flight.send, flight.receive}) {
        if (request->process == process && !request->ended) moved.emplace_back(request->listener, request->cookie);
      }
    }
  }
  lock->unlock();
  for (const auto& [listener, cookie] : moved) listener->OnMoved(cookie);
  lock->lock();
}

// Brings sends and receives of one tag together, in order.
void LoopbackNetwork::Meet(Node* node) {
  for (auto it = node->unexpected.begin(); it != node->unexpected.end();) {
    const auto receive = std::find_if(node->receives.begin(), node->receives.end(),
                                      [&](const auto& request) { return request->tag == it->send->tag; });
    if (receive == node->receives.end() || !Reaches(it->send->process, node->process)) {
      ++it;
      continue;
    }
    // Tags are what tells devices apart.
    const Route& to = it->send->route;
    const Route& from = (*receive)->route;
    CHECK_EQ(from.process, it->send->process);
    CHECK_EQ(from.remote_rail, to.local_rail);
    CHECK_EQ(from.local_rail, to.remote_rail);
    it->receive = *receive;
    node->receives.erase(receive);
    node->met.push_back(std::move(*it));
    it = node->unexpected.erase(it);
  }
}

void LoopbackNetwork::Unpack(Node* node, size_t index) {
  Flight flight = std::move(node->met[index]);
  node->met.erase(node->met.begin() + static_cast<std::ptrdiff_t>(index));
  const Request& send = *flight.send;
  const Request& receive = *flight.receive;
  std::vector<std::byte> data = std::move(flight.eager);
  if (!flight.is_eager && !send.ended) Gather(send.iovs, send.count, &data);
  data.resize(static_cast<size_t>(static_cast<int64_t>(data.size()) + flight.damage));
  if (!receive.ended) Scatter(data, receive.iovs, receive.count);
  const bool fits = data.size() == receive.bytes;
  End(flight.receive, fits ? Status::Ok()
                           : Status::Internal("got " + std::to_string(data.size()) + " bytes instead of " +
                                              std::to_string(receive.bytes)));
  End(flight.send, Status::Ok());
}

void LoopbackNetwork::End(const std::shared_ptr<Request>& request, Status status) {
  if (request->ended) return;
  request->ended = true;
  Node& node = *nodes_[request->process];
  node.open.erase(std::find(node.open.begin(), node.open.end(), request));
  node.ended.push_back({request->listener, request->cookie, std::move(status)});
  node.wake.notify_one();
}

void LoopbackNetwork::Tell(Node* node, int32_t process, Status news, bool renewed) {
  const auto kind = renewed ? Node::Arrived::Kind::kRenewed : Node::Arrived::Kind::kLost;
  node->messages.push_back({kind, process, {}, std::move(news)});
  node->wake.notify_one();
}

// Messages that have not been delivered are lost.
void LoopbackNetwork::EndAllBetween(int32_t a, int32_t b, const std::string& why, bool both_sides) {
  for (const auto& [here, there] : {std::pair{a, b}, std::pair{b, a}}) {
    Node& node = *nodes_[here];
    // What was in flight from there to here.
    const auto from_there = [there = there](const Flight& flight) { return flight.send->process == there; };
    for (auto* flights : {&node.unexpected, &node.met}) {
      flights->erase(std::remove_if(flights->begin(), flights->end(), from_there), flights->end());
    }
    const auto message_from_there = [there = there](const Node::Arrived& arrived) {
      return arrived.kind == Node::Arrived::Kind::kMessage && arrived.process == there;
    };
    node.messages.erase(std::remove_if(node.messages.begin(), node.messages.end(), message_from_there),
                        node.messages.end());
    if (here == b && !both_sides) continue;
    const auto open = node.open;
    for (const auto& request : open) {
      if (request->route.process != there) continue;
      node.receives.remove(request);
      End(request, Status::Unavailable(nodes_[here]->transport->Describe(there) + " is gone: " + why));
    }
  }
}

void LoopbackNetwork::Cut(int32_t process) {
  const std::lock_guard<std::mutex> lock(mutex_);
  cut_[process] = true;
}

void LoopbackNetwork::Kill(int32_t process) {
  const std::lock_guard<std::mutex> lock(mutex_);
  cut_[process] = true;
  for (const auto& node : nodes_) {
    if (node->process == process) continue;
    EndAllBetween(node->process, process, "killed", false);
    Tell(node.get(), process, Status::Unavailable(node->transport->Describe(process) + " is gone: killed"), false);
  }
}

void LoopbackNetwork::Close(int32_t process) {
  Node& node = *nodes_[process];
  const Status why = Status::Unavailable(node.transport->Describe(process) + " closes its network");
  RunOn(process, [&] {
    if (node.handler != nullptr) node.handler->OnClosed(why);
  });
  std::unique_lock<std::mutex> lock(mutex_);
  const auto open = node.open;
  for (const auto& request : open) {
    node.receives.remove(request);
    End(request, why);
  }
  node.closing = true;
  while (!node.closed) {
    lock.unlock();
    std::this_thread::sleep_for(milliseconds(1));
    lock.lock();
  }
}

void LoopbackNetwork::Hold(bool hold) {
  const std::lock_guard<std::mutex> lock(mutex_);
  hold_ = hold;
  for (const auto& node : nodes_) node->wake.notify_one();
}

bool LoopbackNetwork::IsFrozen(const Flight& flight) {
  return flight.send->frozen || (flight.receive != nullptr && flight.receive->frozen);
}

void LoopbackNetwork::Freeze(bool freeze) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& node : nodes_) {
    for (const auto& request : node->open) request->frozen = freeze;
    for (const auto* flights : {&node->unexpected, &node->met}) {
      for (const Flight& flight : *flights) flight.send->frozen = freeze;
    }
    node->wake.notify_one();
  }
}

void LoopbackNetwork::Crawl(bool crawl) {
  const std::lock_guard<std::mutex> lock(mutex_);
  crawl_ = crawl;
}

void LoopbackNetwork::DamageNext(int32_t process, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  nodes_[process]->damage_next = bytes;
}

void LoopbackNetwork::WaitQuiet() {
  const auto quiet = [](const auto& node) {
    return node->tasks.empty() && node->messages.empty() && node->ended.empty() && !node->busy;
  };
  std::unique_lock<std::mutex> lock(mutex_);
  while (!std::all_of(nodes_.begin(), nodes_.end(), quiet)) {
    lock.unlock();
    std::this_thread::sleep_for(milliseconds(1));
    lock.lock();
  }
}

int64_t LoopbackNetwork::OpenRequests(int32_t process) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t open = 0;
  for (const auto& node : nodes_) {
    if (process < 0 || node->process == process) open += static_cast<int64_t>(node->open.size());
  }
  return open;
}

}  // namespace fastjax::test
