// Exchanges between processes that are all in this one, without the protocol by which real ones meet.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_NETWORK_RIG_H_
#define FASTJAX_TESTS_CPP_SUPPORT_NETWORK_RIG_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backends/network/message_schedule.h"
#include "backends/network/runner.h"
#include "exchange/backend.h"
#include "exchange/call_site.h"
#include "exchange/group_traffic.h"
#include "execution/device_plan.h"
#include "support/loopback_transport.h"

namespace fastjax::test {

// Which processes devices belong to.
enum class Owners : uint8_t {
  kServers,  // processes are servers
  kPairs,    // two servers a process, where there are more than two
  kHalves,   // two processes a server, where it has two devices
  kAny,      // dealt at random
};

// Gives every partition of the site a process, and rails in order; returns the number of processes.
int32_t Deal(Owners owners, int32_t devices_per_server, std::mt19937_64* random, CallSite* site);

// Every process's part of every exchange of one call site: what the transport does when its processes have met.
class NetworkExchange final : public Exchange {
 public:
  // Limits are those of even and of odd processes.
  NetworkExchange(LoopbackNetwork* network, std::shared_ptr<const CallSite> site, ExchangeOptions options,
                  network::Limits even = {}, network::Limits odd = {});
  ~NetworkExchange() override;

  // Begins when all devices of the group have come.
  void Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) override;
  // Nobody does, of those who use it.
  void FailGroup(int64_t /*run_id*/, int32_t /*partition*/, const Status& /*why*/, Completion /*done*/) override {
    std::abort();
  }

  // Of what is running there. The first two are for the transport's thread, the others for any.
  void FailHere(int32_t process, const Status& why);
  std::string WaitingHere(int32_t process);
  void Fail(int32_t process, const Status& why);
  void Probe(int32_t process);
  std::string Waiting(int32_t process);
  int64_t Running(int32_t process);
  std::string Failure(int32_t process);
  // Lets the ticks of the transport reach the runners, which they do unless told otherwise.
  void SetTicking(bool ticking) { ticking_ = ticking; }
  // Called on the transport's thread right after an exchange was started there.
  void SetStarted(std::function<void(int32_t process)> started) { started_ = std::move(started); }

 private:
  struct Gathering {
    std::vector<ExchangeArgs> args;
    std::vector<Completion> done;
    int32_t missing = 0;
  };
  struct Part;
  struct Side;

  void Launch(int32_t group, std::shared_ptr<Gathering> all);
  void Begin(Side* side, int32_t group, const std::shared_ptr<Gathering>& all, uint64_t tag);

  LoopbackNetwork& network_;
  const std::shared_ptr<const CallSite> site_;
  const ExchangeOptions options_;
  const network::Limits limits_[2];
  std::atomic<bool> ticking_{true};
  std::function<void(int32_t)> started_;
  std::mutex mutex_;
  uint64_t exchanges_ = 0;
  std::map<std::pair<int64_t, int32_t>, std::shared_ptr<Gathering>> gatherings_;  // by run and group
  std::vector<std::unique_ptr<Side>> sides_;                                      // by process
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_NETWORK_RIG_H_
