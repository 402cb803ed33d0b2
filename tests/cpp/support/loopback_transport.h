// Transports between processes that are all in this one, with faults on demand.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_LOOPBACK_TRANSPORT_H_
#define FASTJAX_TESTS_CPP_SUPPORT_LOOPBACK_TRANSPORT_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "exchange/status.h"
#include "runtime/transport.h"

namespace fastjax::test {

struct LoopbackOptions {
  int32_t processes = 2;
  size_t eager_bytes = 64;  // a send of more waits for its receive
  bool reorder = true;      // whatever transport.h does not order happens in any order
  uint64_t seed = 1;
};

// Behaves as transport.h says; in what that leaves open, as unkindly as it can: tags alone match, rows move long after
// sends and receives have met, requests end in any order.
class LoopbackNetwork {
 public:
  explicit LoopbackNetwork(const LoopbackOptions& options);
  ~LoopbackNetwork();
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  Transport* transport(int32_t process);
  // Runs `task` on that transport's thread and waits for it.
  void RunOn(int32_t process, const std::function<void()>& task);

  // From any thread. Nothing moves to or from the process any more, and nobody is told.
  void Cut(int32_t process);
  // The same, and everybody is told.
  void Kill(int32_t process);
  // As the transport does when its process ends; returns when nothing can be posted there any more.
  void Close(int32_t process);
  // Rows stay where they are until they are let go: requests meet, and do not end.
  void Hold(bool hold);
  // Requests that are open now, and what they meet, stay where they are until they are thawed; later ones go on.
  void Freeze(bool freeze);
  // What is held moves all the same, without arriving.
  void Crawl(bool crawl);
  // The next message that the process sends is by so many bytes longer (or shorter) than its iovs.
  void DamageNext(int32_t process, int64_t bytes);

  // Returns when nobody has anything left to be told.
  void WaitQuiet();

  // Requests that have not ended, of all processes or one.
  int64_t OpenRequests(int32_t process = -1);
  int64_t disconnects() const { return disconnects_; }
  int64_t probes() const { return probes_; }
  // The most requests of any device that had not ended at once.
  int64_t most_sends() const { return most_[1]; }
  int64_t most_receives() const { return most_[0]; }

 private:
  class LoopbackTransport;
  struct Request;
  struct Flight;
  struct Node;

  void Loop(int32_t process);
  bool LoopOnce(Node* node, std::unique_lock<std::mutex>* lock);
  void Meet(Node* node);
  void Unpack(Node* node, size_t index);
  void TellMoved(int32_t process, std::unique_lock<std::mutex>* lock);
  void End(const std::shared_ptr<Request>& request, Status status);
  void Tell(Node* node, int32_t process, Status news, bool renewed);
  void EndAllBetween(int32_t a, int32_t b, const std::string& why, bool both_sides);
  bool Reaches(int32_t a, int32_t b) const { return !cut_[a] && !cut_[b]; }
  static bool IsFrozen(const Flight& flight);

  const LoopbackOptions options_;
  std::mutex mutex_;
  std::mt19937_64 random_;
  bool stopping_ = false;
  bool hold_ = false;
  bool crawl_ = false;
  std::vector<bool> cut_;
  std::atomic<int64_t> disconnects_{0}, probes_{0};
  std::atomic<int64_t> most_[2] = {};
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_LOOPBACK_TRANSPORT_H_
