// A job's transport that goes nowhere, and remembers what it is told.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_JOB_TRANSPORT_H_
#define FASTJAX_TESTS_CPP_SUPPORT_JOB_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/job_network.h"
#include "runtime/transport.h"

namespace fastjax::test {

class DeadJobTransport final : public JobTransport {
 public:
  explicit DeadJobTransport(const TransportOptions& options) : options_(options) {}

  const std::string& addresses() const override { return addresses_; }
  std::string AddPeer(int32_t process, const std::string& addresses) override {
    told.push_back("joined " + std::to_string(process) + ": " + addresses);
    return addresses.empty() ? "no addresses" : "";
  }
  void PeerLost(int32_t process, const std::string& why) override {
    told.push_back("lost " + std::to_string(process) + ": " + why);
  }
  bool Close(std::chrono::milliseconds limit) override {
    told.push_back("close within " + std::to_string(limit.count()) + " ms");
    return closes;
  }
  void Halt() override {}
  TransportState State() override {
    TransportState state;
    state.library = options_.library;
    return state;
  }

  int32_t process() const override { return options_.process; }
  int32_t processes() const override { return options_.processes; }
  void SetHandler(Handler*) override {}
  bool Post(std::function<void()>) override { return false; }
  uint64_t KeyedHash(const void*, size_t) const override { return 0; }
  std::string Describe(int32_t process) const override { return "process " + std::to_string(process); }
  void SendMessage(int32_t, const void*, size_t) override {}
  void Send(const Route&, uint64_t, const Iov*, int32_t, Listener*, int64_t) override {}
  void Receive(const Route&, uint64_t, const Iov*, int32_t, Listener*, int64_t) override {}
  void Cancel(Listener*) override {}
  void Disconnect(int32_t) override {}
  void Probe(int32_t) override {}
  bool Silent(int32_t) const override { return false; }
  void Drop(uint64_t, uint64_t) override {}

  std::vector<std::string> told;
  bool closes = true;

 private:
  const TransportOptions options_;
  const std::string addresses_ = "nowhere";
};

// Opens one; `transport` then has it, too.
inline TransportOpener OpenDead(std::shared_ptr<DeadJobTransport>* transport) {
  return [transport](const TransportOptions& options, std::string*) {
    return *transport = std::make_shared<DeadJobTransport>(options);
  };
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_JOB_TRANSPORT_H_
