#include "support/loopback_transport.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <utility>

#include "support/check.h"

namespace fastjax::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kTick{20};
constexpr size_t kEagerBytes = 64;  // a send of more waits for its receive

size_t Bytes(const Iov* iovs, int32_t count) {
  size_t bytes = 0;
  for (int32_t i = 0; i < count; ++i) bytes += iovs[i].bytes;
  return bytes;
}

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
struct LoopbackNetwork::Request : RowMessage {
  int32_t process;
  bool sends;
  size_t bytes;  // of the iovs
  bool held;
  bool ended = false;
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
  // A message, or what became of a connection.
  struct News {
    int32_t from;
    bool is_message;
    std::function<void(Handler*)> tell;
  };
  int32_t process = 0;
  std::unique_ptr<LoopbackTransport> transport;
  std::thread thread;
  std::condition_variable wake;
  std::deque<Task> tasks;
  std::deque<News> news;
  std::deque<Task> ended;                        // what listeners are to be told, in any order
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

  void Tell(int32_t from, bool is_message, std::function<void(Handler*)> tell) {
    news.push_back({from, is_message, std::move(tell)});
    wake.notify_one();
  }
};

class LoopbackNetwork::LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(LoopbackNetwork* network, int32_t process) : network_(*network), process_(process) {}

  int32_t process() const override { return process_; }
  int32_t processes() const override { return static_cast<int32_t>(network_.nodes_.size()); }
  void SetHandler(Handler* handler) override {
    const std::lock_guard<std::mutex> lock(network_.mutex_);
    node().handler = handler;
  }
  bool Post(Task task) override {
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
    const auto lock = Lock();
    if (!network_.Reaches(process_, process)) return;
    const auto* begin = static_cast<const std::byte*>(data);
    network_.nodes_[process]->Tell(
        process_, true, [from = process_, copy = std::vector<std::byte>(begin, begin + bytes)](Handler* handler) {
          handler->OnMessage(from, copy.data(), copy.size());
        });
  }

  void Send(const RowMessage& message) override {
    const auto lock = Lock();
    Flight flight;
    flight.send = Open(true, message);
    flight.damage = std::exchange(node().damage_next, 0);
    flight.is_eager = flight.send->bytes <= kEagerBytes;
    if (flight.is_eager) {
      Gather(message.iovs, message.count, &flight.eager);
      network_.End(flight.send, Status::Ok());
    }
    Node& to = *network_.nodes_[message.route.process];
    for (const auto& [value, mask] : to.dropped) {
      if ((message.tag & mask) != (value & mask) || !network_.Reaches(process_, to.process)) continue;
      network_.End(flight.send, Status::Ok());
      return;
    }
    to.unexpected.push_back(std::move(flight));
    network_.Meet(&to);
  }

  void Receive(const RowMessage& message) override {
    const auto lock = Lock();
    node().receives.push_back(Open(false, message));
    network_.Meet(&node());
  }

  void Cancel(Listener* listener) override {
    const auto lock = Lock();
    node().receives.remove_if([&](const auto& request) {
      if (request->listener != listener) return false;
      network_.End(request, Status::Unavailable("cancelled"));
      return true;
    });
  }

  void Disconnect(int32_t process) override {
    const auto lock = Lock();
    ++network_.disconnects_;
    node().silent[static_cast<size_t>(process)] = false;
    const bool reaches = network_.Reaches(process_, process);
    network_.EndAllBetween(process_, process, "disconnected", reaches);
    if (!reaches) return;
    node().Tell(process, false, [process](Handler* handler) { handler->OnRenewed(process, Status::Ok()); });
    network_.nodes_[process]->Tell(process_, false,
                                   [from = process_, why = Describe(process_) + " disconnected"](Handler* handler) {
                                     handler->OnRenewed(from, Status::Unavailable(why));
                                   });
  }

  void Probe(int32_t process) override {
    const auto lock = Lock();
    ++network_.probes_;
    node().silent[static_cast<size_t>(process)] = !network_.Reaches(process_, process);
  }

  bool Silent(int32_t process) const override {
    const auto lock = Lock();
    return node().silent[static_cast<size_t>(process)];
  }

  void Drop(uint64_t tag, uint64_t mask) override {
    const auto lock = Lock();
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
  // Of methods that only the transport's thread may call.
  std::unique_lock<std::mutex> Lock() const {
    CHECK(std::this_thread::get_id() == node().thread.get_id());
    return std::unique_lock<std::mutex>(network_.mutex_);
  }
  std::shared_ptr<Request> Open(bool sends, const RowMessage& message) {
    CHECK_NE(message.route.process, process_);
    auto request = std::make_shared<Request>(
        Request{message, process_, sends, Bytes(message.iovs, message.count), network_.hold_});
    node().open.push_back(request);
    const int64_t of_rail = std::count_if(node().open.begin(), node().open.end(), [&](const auto& other) {
      return other->sends == sends && other->route.local_rail == message.route.local_rail;
    });
    std::atomic<int64_t>& most = network_.most_[sends ? 1 : 0];
    most = std::max(most.load(), of_rail);
    return request;
  }

  LoopbackNetwork& network_;
  const int32_t process_;
};

LoopbackNetwork::LoopbackNetwork(int32_t processes, uint64_t seed)
    : random_(seed), cut_(static_cast<size_t>(processes), false) {
  for (int32_t process = 0; process < processes; ++process) {
    nodes_.push_back(std::make_unique<Node>());
    nodes_.back()->process = process;
    nodes_.back()->silent.resize(static_cast<size_t>(processes), false);
    nodes_.back()->transport = std::make_unique<LoopbackTransport>(this, process);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& node : nodes_) node->thread = std::thread([this, at = node.get()] { Loop(at); });
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
  std::promise<void> ran;
  const bool posted = transport(process)->Post([&] {
    task();
    ran.set_value();
  });
  if (!posted) return task();
  ran.get_future().wait();
}

void LoopbackNetwork::Loop(Node* node) {
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
  if (ticking_ && node->handler != nullptr && now - node->ticked >= kTick) {
    node->ticked = now;
    lock->unlock();
    node->handler->OnTick(now);
    lock->lock();
  }
  std::vector<size_t> arriving;
  for (size_t i = 0; i < node->met.size(); ++i) {
    if (MayArrive(node->met[i])) arriving.push_back(i);
  }
  const size_t kinds[] = {arriving.size(), node->ended.size(), node->tasks.size(), node->news.size()};
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
  Task task;
  if (kind == 3) {
    task = [handler = node->handler, tell = std::move(node->news.front().tell)] { tell(handler); };
    node->news.pop_front();
  } else {
    std::deque<Task>* const tasks = kind == 1 ? &node->ended : &node->tasks;
    if (kind == 1) std::swap(tasks->front(), (*tasks)[random_() % tasks->size()]);
    task = std::move(tasks->front());
    tasks->pop_front();
  }
  node->busy = true;
  lock->unlock();
  task();
  task = nullptr;
  lock->lock();
  node->busy = false;
  return true;
}

bool LoopbackNetwork::MayArrive(const Flight& flight) const {
  return Reaches(flight.send->process, flight.receive->process) && !flight.send->held && !flight.receive->held;
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
  node->wake.notify_one();
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

void LoopbackNetwork::End(const std::shared_ptr<Request>& request, const Status& status) {
  if (request->ended) return;
  request->ended = true;
  Node& node = *nodes_[request->process];
  node.open.erase(std::find(node.open.begin(), node.open.end(), request));
  node.ended.push_back([request, status] { request->listener->OnDone(request->cookie, status); });
  node.wake.notify_one();
}

// Messages that have not been delivered are lost.
void LoopbackNetwork::EndAllBetween(int32_t a, int32_t b, const std::string& why, bool both_sides) {
  const auto erase = [](auto* from, const auto& condition) {
    from->erase(std::remove_if(from->begin(), from->end(), condition), from->end());
  };
  for (const auto& [here, there] : {std::pair{a, b}, std::pair{b, a}}) {
    Node& node = *nodes_[here];
    const auto from_there = [there = there](const Flight& flight) { return flight.send->process == there; };
    erase(&node.unexpected, from_there);
    erase(&node.met, from_there);
    erase(&node.news, [there = there](const Node::News& news) { return news.is_message && news.from == there; });
    if (here == b && !both_sides) continue;
    const auto open = node.open;
    for (const auto& request : open) {
      if (request->route.process != there) continue;
      node.receives.remove(request);
      End(request, Status::Unavailable(node.transport->Describe(there) + " is gone: " + why));
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
    node->Tell(process, false, [process, why = node->transport->Describe(process) + " is gone: killed"](Handler* to) {
      to->OnLost(process, Status::Unavailable(why));
    });
  }
}

void LoopbackNetwork::Close(int32_t process) {
  Node& node = *nodes_[process];
  const Status why = Status::Unavailable(node.transport->Describe(process) + " closes its network");
  RunOn(process, [&] { node.handler->OnClosed(why); });
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
}

void LoopbackNetwork::LetGo() {
  const std::lock_guard<std::mutex> lock(mutex_);
  hold_ = false;
  for (const auto& node : nodes_) {
    for (auto* flights : {&node->unexpected, &node->met}) {
      for (const Flight& flight : *flights) flight.send->held = false;
    }
    for (const auto& request : node->open) request->held = false;
    node->wake.notify_one();
  }
}

void LoopbackNetwork::Crawl() {
  for (const auto& node : nodes_) {
    RunOn(node->process, [&] {
      std::vector<std::shared_ptr<Request>> open;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        open = node->open;
      }
      for (const auto& request : open) request->listener->OnMoved(request->cookie);
    });
  }
}

void LoopbackNetwork::SetTicking(bool ticking) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ticking_ = ticking;
}

void LoopbackNetwork::DamageNext(int32_t process, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  nodes_[process]->damage_next = bytes;
}

void LoopbackNetwork::WaitQuiet() {
  const auto quiet = [this](const auto& node) {
    return node->tasks.empty() && node->news.empty() && node->ended.empty() && !node->busy &&
           std::none_of(node->met.begin(), node->met.end(), [this](const Flight& each) { return MayArrive(each); });
  };
  std::unique_lock<std::mutex> lock(mutex_);
  while (!std::all_of(nodes_.begin(), nodes_.end(), quiet)) {
    lock.unlock();
    std::this_thread::sleep_for(milliseconds(1));
    lock.lock();
  }
}

int64_t LoopbackNetwork::OpenRequests() {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t open = 0;
  for (const auto& node : nodes_) open += static_cast<int64_t>(node->open.size());
  return open;
}

}  // namespace fastjax::test
