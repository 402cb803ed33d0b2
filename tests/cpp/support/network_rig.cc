#include "support/network_rig.h"

#include <algorithm>
#include <chrono>

#include "support/check.h"
#include "support/device_plans.h"

namespace fastjax::test {

using network::MessageSchedule;
using network::Runner;

int32_t Deal(Owners owners, int32_t devices_per_server, std::mt19937_64* random, CallSite* site) {
  const int32_t servers = std::max(1, site->group_size / devices_per_server);
  const int32_t any = 2 + static_cast<int32_t>((*random)() % 3);
  int32_t processes = 0;
  for (int32_t partition = 0; partition < site->partitions(); ++partition) {
    const int32_t rank = site->rank_of[site->position_of[partition]];
    const int32_t server = rank / devices_per_server;
    int32_t owner = server;
    if (owners == Owners::kPairs && servers > 2) owner = server / 2;
    if (owners == Owners::kHalves && devices_per_server > 1) {
      owner = 2 * server + (2 * (rank % devices_per_server) >= devices_per_server ? 1 : 0);
    }
    if (owners == Owners::kAny) owner = static_cast<int32_t>((*random)() % static_cast<uint64_t>(any));
    site->process_of.push_back(owner);
    processes = std::max(processes, owner + 1);
  }
  std::vector<int32_t> rails(static_cast<size_t>(processes), 0);
  for (const int32_t owner : site->process_of) site->rail_of.push_back(rails[owner]++);
  return processes;
}

// What one process does of one exchange; reused by later ones.
struct NetworkExchange::Part {
  explicit Part(network::Limits limits) : runner(limits) {}
  std::shared_ptr<Gathering> all;
  std::vector<ExchangeArgs> args;
  std::vector<const int32_t*> tables;
  GroupTraffic traffic;
  DevicePlans plans;
  MessageSchedule schedule;
  Runner runner;
};

struct NetworkExchange::Side final : Handler {
  void OnMessage(int32_t, const std::byte*, size_t) override {}
  void OnLost(int32_t /*lost*/, const Status& status) override { OnClosed(status); }
  void OnRenewed(int32_t process, const Status& why) override {
    if (!why.ok()) OnLost(process, why);
  }
  void OnClosed(const Status& why) override {
    for (const auto& part : parts) part->runner.Fail(why);
  }
  bool Busy() const override { return free.size() < parts.size(); }
  void OnTick(std::chrono::steady_clock::time_point now) override {
    for (size_t i = 0; owner->ticking_ && i < parts.size(); ++i) parts[i]->runner.Tick(now);
  }

  NetworkExchange* owner = nullptr;
  int32_t process = 0;
  std::vector<std::unique_ptr<Part>> parts;  // all below on the transport's thread
  std::vector<Part*> free;
};

NetworkExchange::NetworkExchange(LoopbackNetwork* network, std::shared_ptr<const CallSite> site,
                                 ExchangeOptions options, network::Limits even, network::Limits odd)
    : network_(*network), site_(std::move(site)), options_(std::move(options)), limits_{even, odd} {
  const int32_t processes = network_.transport(0)->processes();
  for (int32_t process = 0; process < processes; ++process) {
    sides_.push_back(std::make_unique<Side>());
    sides_.back()->owner = this;
    sides_.back()->process = process;
    network_.transport(process)->SetHandler(sides_.back().get());
  }
}

NetworkExchange::~NetworkExchange() {
  for (const auto& side : sides_) {
    network_.RunOn(side->process, [&] {
      CHECK_EQ(side->free.size(), side->parts.size());
      network_.transport(side->process)->SetHandler(nullptr);
    });
  }
}

void NetworkExchange::Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) {
  const int32_t group = site_->group_of[partition];
  std::shared_ptr<Gathering> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& gathering = gatherings_[{run_id, group}];
    if (gathering == nullptr) {
      gathering = std::make_shared<Gathering>();
      gathering->args.resize(site_->group_size);
      gathering->done.resize(site_->group_size);
      gathering->missing = site_->group_size;
    }
    gathering->args[site_->position_of[partition]] = args;
    gathering->done[site_->position_of[partition]] = std::move(done);
    if (--gathering->missing > 0) return;
    all = gathering;
    gatherings_.erase({run_id, group});
  }
  Launch(group, std::move(all));
}

void NetworkExchange::Launch(int32_t group, std::shared_ptr<Gathering> all) {
  uint64_t tag = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Processes come by at different times, and each meets its peers' messages of other exchanges.
    tag = ++exchanges_ << 20;
  }
  for (const auto& side : sides_) {
    network_.transport(side->process)->Post([this, at = side.get(), group, all, tag] { Begin(at, group, all, tag); });
  }
}

void NetworkExchange::Begin(Side* side, int32_t group, const std::shared_ptr<Gathering>& all, uint64_t tag) {
  std::vector<int32_t> here;  // positions
  for (int32_t position = 0; position < site_->group_size; ++position) {
    if (site_->process_of[site_->partition(group, position)] == side->process) here.push_back(position);
  }
  if (here.empty()) return;  // takes no part
  if (side->free.empty()) {
    side->parts.push_back(std::make_unique<Part>(limits_[side->process % 2]));
    side->free.push_back(side->parts.back().get());
  }
  Part* const part = side->free.back();
  side->free.pop_back();
  part->all = all;
  part->args = all->args;
  part->tables.assign(site_->group_size, nullptr);
  for (int32_t position = 0; position < site_->group_size; ++position) {
    ExchangeArgs& args = part->args[position];
    if (site_->process_of[site_->partition(group, position)] == side->process) {
      part->tables[site_->rank_of[position]] = args.table;
      continue;
    }
    args.source = nullptr;
    args.destination = nullptr;
    args.table = nullptr;
    args.row_bytes = -1;
    args.element = kernels::ElementKind::kOpaque;
  }
  const auto finish = [part, side, here](const Status& status) {
    part->schedule.Release();
    const auto gathering = std::move(part->all);
    side->free.push_back(part);
    for (const int32_t position : here) gathering->done[position](status);
  };
  ViewTables(part->tables, options_.backwards(), &part->plans);
  GroupTraffic& traffic = part->traffic;
  Status status = traffic.Load(*site_, group, part->args, options_.reverse);
  if (status.ok()) {
    status = options_.reverse && (options_.indexed || traffic.DestinationsOverlap())
                 ? part->schedule.BuildSum(*site_, group, side->process, part->args, traffic)
                 : part->schedule.Build(*site_, group, side->process, part->args, part->plans, traffic);
  }
  if (!status.ok()) return finish(status);
  part->runner.Start(network_.transport(side->process), site_.get(), group, &part->schedule, tag,
                     static_cast<int64_t>(tag), finish);
  if (started_) started_(side->process);
}

void NetworkExchange::FailHere(int32_t process, const Status& why) {
  for (const auto& part : sides_[process]->parts) part->runner.Fail(why);
}

void NetworkExchange::Fail(int32_t process, const Status& why) {
  network_.RunOn(process, [&] { FailHere(process, why); });
}

void NetworkExchange::Probe(int32_t process) {
  network_.RunOn(process, [&] {
    for (const auto& part : sides_[process]->parts) part->runner.Probe();
  });
}

std::string NetworkExchange::WaitingHere(int32_t process) {
  std::string text;
  for (const auto& part : sides_[process]->parts) {
    if (part->runner.running()) text += part->runner.Waiting();
  }
  return text;
}

std::string NetworkExchange::Waiting(int32_t process) {
  std::string text;
  network_.RunOn(process, [&] { text = WaitingHere(process); });
  return text;
}

std::string NetworkExchange::Failure(int32_t process) {
  std::string text;
  network_.RunOn(process, [&] {
    for (const auto& part : sides_[process]->parts) {
      if (part->runner.running()) text += part->runner.failure().message;
    }
  });
  return text;
}

int64_t NetworkExchange::Running(int32_t process) {
  int64_t running = 0;
  network_.RunOn(process, [&] {
    for (const auto& part : sides_[process]->parts) running += part->runner.running() ? 1 : 0;
  });
  return running;
}

}  // namespace fastjax::test
