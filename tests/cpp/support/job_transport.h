// A job's transport that goes nowhere, and remembers what it is told.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_JOB_TRANSPORT_H_
#define FASTJAX_TESTS_CPP_SUPPORT_JOB_TRANSPORT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/job_network.h"
#include "support/unlinked_transport.h"

namespace fastjax::test {

class DeadJobTransport final : public UnlinkedTransport<JobTransport> {
 public:
  explicit DeadJobTransport(const TransportOptions& options) : UnlinkedTransport(options.process, options.processes) {}

  const std::string& addresses() const override { return addresses_; }
  std::string AddPeer(int32_t /*process*/, const std::string& /*addresses*/) override { return {}; }
  void PeerLost(int32_t /*process*/, const std::string& /*why*/) override {}
  bool Close(std::chrono::milliseconds limit) override {
    told.push_back("close within " + std::to_string(limit.count()) + " ms");
    return closes;
  }
  void Halt() override {}
  TransportState State() override { return {}; }

  std::vector<std::string> told;
  bool closes = true;

 private:
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
