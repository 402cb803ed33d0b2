#include "rendezvous/counts.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "planner/table.h"
#include "rendezvous/process_launch.h"
#include "rendezvous/rendezvous.h"

namespace fastjax {
namespace {

// Rows of a block that a table can hold; with more, a planner could not even add blocks up.
constexpr int64_t kMaxBlockRows = std::numeric_limits<int32_t>::max();

// An MoE layer tells of an expert that there is not by a negative size (fastjax/moe/routing.py): minus the expert's
// number, or if that is negative, minus kNegative and its size. Sizes are below kNegative; the largest stands for more.
constexpr int64_t kNegative = int64_t{1} << 30;

std::string ExpertOf(int64_t size) {
  const bool negative = -size >= kNegative;
  const int64_t number = negative ? size + kNegative : -size;
  if (number == 1 - kNegative) return std::to_string(number) + " or less";
  return std::to_string(number) + (number == kNegative - 1 ? " or more" : "");
}

std::string WhatIsWrong(const CallSite& site, size_t update, int64_t size) {
  if (site.experts == 0) {
    return "send_sizes[" + std::to_string(update) + "] = " + std::to_string(size) + "; a size must be 0 or more.";
  }
  return "moe.dispatch was given the expert " + ExpertOf(size) + " in expert_ids; want 0 to " +
         std::to_string(site.experts - 1) + ", or -1 for choices that go nowhere.";
}

std::shared_ptr<const CallSite> RecordedSite(const std::shared_ptr<const CallSite>& site, const PlanFunction& plan) {
  return plan || site->experts > 0 ? site : nullptr;
}

// When the last device arrives, its thread has the counts of all: it plans once and writes every device's table.
class DeviceCounts final : public Rendezvous<CountsArgs> {
 public:
  DeviceCounts(const std::shared_ptr<const CallSite>& call_site, PlanFunction plan)
      : Rendezvous(call_site), plan_(std::move(plan)), recorder_(RecordedSite(call_site, plan_), SiteKind{}) {}

 private:
  void Execute(Session* session, int32_t last) override { session->Finish(Plan(*session), last); }
  void OnFailed(const Session& /*session*/, const Status& /*why*/) override { recorder_.Fail(); }

  Status Plan(const Session& session) {
    // A call site plans for one launch at a time: its groups and launches share scratch memory.
    const std::lock_guard<std::mutex> lock(mutex_);
    Launch launch = recorder_.Begin();
    Status status = Guarded(
        [&] { return work_.GatherAndPlan(site(), session.group(), session.args(), site().rank_of, plan_, &launch); });
    recorder_.End(launch, status, status.ok() && launch.recorded ? work_.Summary(site()) : LaunchSummary{});
    return status;
  }

  const PlanFunction plan_;
  Recorder recorder_;
  std::mutex mutex_;
  CountsWork work_;
};

// Every process sums the same counts and makes the same plan; each writes the tables of its own devices.
class CountsLaunch final : public ProcessLaunch<CountsArgs> {
 public:
  CountsLaunch(const Site& site, Recorder* recorder, const PlanFunction& plan)
      : ProcessLaunch(site, recorder), plan_(plan) {}

 private:
  Status Prepare(bool* /*found_by_all*/) override {
    return work_.GatherAndPlan(site().call_site(), group(), args(), site().local_ranks(group()), plan_, launch());
  }
  LaunchSummary summary() const override { return work_.Summary(site().call_site()); }

  const PlanFunction& plan_;
  CountsWork work_;
};

}  // namespace

Status CountsWork::GatherAndPlan(const CallSite& site, int32_t group, const std::vector<CountsArgs>& args,
                                 const std::vector<int32_t>& ranks, const PlanFunction& plan, Launch* launch) {
  Gather(args);
  if (!plan) {
    if (launch->recorded) SumAtHome(site);
    return Status::Ok();
  }
  if (Status status = Sum(site, group, args); !status.ok()) return status;
  bool written = true;
  const auto write = [&](planner::Planner* planner) {
    stages_ = planner->num_stages();
    scheduler_ = static_cast<int32_t>(planner->chosen());
    for (const int32_t rank : ranks) {
      written = written && planner::WriteTable(planner, rank, args[site.position_at[rank]].table_words);
    }
  };
  // A reference is small enough for std::function to hold without allocating.
  const TakePlan take = std::ref(write);
  Status status = PlanRecorded([&](bool* made) { return plan(traffic_.data(), take, made); }, launch);
  if (status.ok() && !written) {
    return Status::Internal(site.Prefix() +
                            "a stage table has more entries than were to be expected. Please report this.");
  }
  for (size_t p = 0; p < args.size() && status.ok(); ++p) {
    if (args[p].take_table) status = args[p].take_table();
  }
  return status;
}

// Writes everybody's sizes, by position, where devices want them.
void CountsWork::Gather(const std::vector<CountsArgs>& args) {
  const auto wanted = [](const CountsArgs& device) { return device.gathered != nullptr; };
  if (std::none_of(args.begin(), args.end(), wanted)) return;
  const int64_t each = args.front().send_sizes.size;
  sizes_.resize(static_cast<size_t>(each) * args.size());
  for (size_t p = 0; p < args.size(); ++p) args[p].send_sizes.CopyTo(sizes_.data() + static_cast<int64_t>(p) * each);
  for (const CountsArgs& device : args) {
    if (!wanted(device)) continue;
    std::transform(sizes_.begin(), sizes_.end(), device.gathered,
                   [](int64_t size) { return static_cast<int32_t>(size); });
  }
}

// Makes the traffic matrix from everybody's sizes, which are checked.
Status CountsWork::Sum(const CallSite& site, int32_t group, const std::vector<CountsArgs>& args) {
  const auto devices = static_cast<size_t>(site.group_size);
  traffic_.assign(devices * devices, 0);
  for (int32_t p = 0; p < site.group_size; ++p) {
    sizes_.resize(static_cast<size_t>(args[p].send_sizes.size));
    args[p].send_sizes.CopyTo(sizes_.data());
    const int64_t per_peer = args[p].send_sizes.size / site.group_size;
    for (size_t u = 0; u < sizes_.size(); ++u) {
      if (sizes_[u] < 0) {
        return Status::Invalid(site.Prefix() + "on " + site.DeviceName(group, p) + ", " +
                               WhatIsWrong(site, u, sizes_[u]));
      }
      const auto peer = static_cast<int32_t>(static_cast<int64_t>(u) / per_peer);
      int64_t& block =
          traffic_[static_cast<size_t>(site.rank_of[p]) * devices + static_cast<size_t>(site.rank_of[peer])];
      if (sizes_[u] > kMaxBlockRows - block) {
        return Status::Invalid(site.Prefix() + site.DeviceName(group, p) + " sends 2^31 rows or more to " +
                               site.DeviceName(group, peer) + "; split the exchange.");
      }
      block += sizes_[u];
    }
  }
  return Status::Ok();
}

// The choices of each device, as gathered, by the devices that have their experts, which divide over the call site's.
void CountsWork::SumAtHome(const CallSite& site) {
  const auto devices = static_cast<size_t>(site.group_size);
  const auto servers = static_cast<size_t>(site.servers);
  const size_t part = servers + static_cast<size_t>(site.experts);
  const size_t here = static_cast<size_t>(site.experts) / devices;
  const size_t each = sizes_.size() / devices;
  traffic_.assign(devices * devices, 0);
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const size_t at = i % each % part;
    if (at < servers) continue;
    const auto sender = static_cast<size_t>(site.rank_of[i / each]);
    const auto home = static_cast<size_t>(site.rank_of[(at - servers) / here]);
    traffic_[sender * devices + home] += sizes_[i];
  }
}

std::shared_ptr<Counts> OpenCounts(std::shared_ptr<ProcessGroup> process_group,
                                   const std::shared_ptr<const CallSite>& site, PlanFunction plan) {
  if (process_group == nullptr) return OpenRendezvous<DeviceCounts>(site, std::move(plan));
  const std::string what = plan ? "planning" : "gathering";
  auto recorder = std::make_unique<Recorder>(RecordedSite(site, plan), SiteKind{});
  return OpenRendezvous<ProcessOperation<CountsLaunch, PlanFunction>>(std::move(process_group), site, what,
                                                                      std::move(recorder), std::move(plan));
}

}  // namespace fastjax
