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

// Behaves as transport.h says; in what that leaves open, as unkindly as it can: tags alone match, rows move long after
// sends and receives have met, requests end in any order.
class LoopbackNetwork {
 public:
  LoopbackNetwork(int32_t processes, uint64_t seed);
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
  // Requests that are made while this holds meet, and do not end before they are let go.
  void Hold(bool hold);
  void LetGo();
  // Says of what is in flight that it moves.
  void Crawl();
  // Whether handlers get ticks by the clock, which they do unless told otherwise.
  void SetTicking(bool ticking);
  // The next message that the process sends is by so many bytes longer (or shorter) than its iovs.
  void DamageNext(int32_t process, int64_t bytes);

  // Returns when nobody has anything left to be told.
  void WaitQuiet();

  // Requests that have not ended.
  int64_t OpenRequests();
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
  using Task = std::function<void()>;

  void Loop(Node* node);
  bool LoopOnce(Node* node, std::unique_lock<std::mutex>* lock);
  bool MayArrive(const Flight& flight) const;
  void Meet(Node* node);
  void Unpack(Node* node, size_t index);
  void End(const std::shared_ptr<Request>& request, const Status& status);
  void EndAllBetween(int32_t a, int32_t b, const std::string& why, bool both_sides);
  bool Reaches(int32_t a, int32_t b) const { return !cut_[a] && !cut_[b]; }

  std::mutex mutex_;
  std::mt19937_64 random_;
  bool stopping_ = false;
  bool hold_ = false;
  bool ticking_ = true;
  std::vector<bool> cut_;
  std::atomic<int64_t> disconnects_{0}, probes_{0};
  std::atomic<int64_t> most_[2] = {};
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_LOOPBACK_TRANSPORT_H_
