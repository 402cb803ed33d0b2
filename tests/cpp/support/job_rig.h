// The processes of a job, all in this one: transports, backends and call sites of each.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_JOB_RIG_H_
#define FASTJAX_TESTS_CPP_SUPPORT_JOB_RIG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backends/registry.h"
#include "exchange/operation.h"
#include "support/device_plans.h"
#include "support/exchange_rig.h"
#include "support/loopback_transport.h"

namespace fastjax::test {

// The backends of all processes of a job.
struct Processes {
  using Make = std::function<Backend(const std::shared_ptr<ProcessGroup>&)>;

  // `make`: what a process uses instead of its network backend alone.
  explicit Processes(int32_t count, uint64_t seed, const Make& make = nullptr)
      : own(std::make_unique<LoopbackNetwork>(count, seed)), network(*own) {
    for (int32_t p = 0; p < count; ++p) {
      // The network owns its transports.
      auto process_group =
          std::make_shared<ProcessGroup>(std::shared_ptr<Transport>(std::shared_ptr<void>(), network.transport(p)));
      stations.push_back(process_group);
      backends.push_back(make == nullptr ? Backend{process_group, {}} : make(process_group));
    }
  }

  // Ends the transports' threads before what they call.
  ~Processes() { own.reset(); }

  std::unique_ptr<LoopbackNetwork> own;
  LoopbackNetwork& network;
  std::vector<std::shared_ptr<ProcessGroup>> stations;  // by process
  std::vector<Backend> backends;
};

// One call site of a program, in every process: each has planned for itself.
class Everywhere final : public Exchange {
 public:
  // What a process plans by, where the exchange plans itself.
  using PlanOf = std::function<PlanFunction(size_t process, PlanFunction plan)>;

  Everywhere(Processes* processes, std::shared_ptr<const CallSite> site, const RigOptions& rig,
             const PlanOf& plan_of = nullptr)
      : site_(std::move(site)) {
    for (const Backend& backend : processes->backends) {
      ExchangeOptions options = rig.exchange;
      if (rig.exchange.plan) options.plan = PlanSlices(rig.topology, rig.scheduler, rig.row_bytes);
      if (plan_of) options.plan = plan_of(exchanges_.size(), std::move(options.plan));
      exchanges_.push_back(backend.OpenExchange(site_, options));
    }
  }
  void Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) override {
    exchanges_[site_->process_of[partition]]->Start(run_id, partition, args, std::move(done));
  }
  void FailGroup(int64_t run_id, int32_t partition, const Status& why, Completion done) override {
    exchanges_[site_->process_of[partition]]->FailGroup(run_id, partition, why, std::move(done));
  }

 private:
  std::shared_ptr<const CallSite> site_;
  std::vector<std::shared_ptr<Exchange>> exchanges_;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_JOB_RIG_H_
