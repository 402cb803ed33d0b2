// What a process makes of plans: nothing outside the buffers is named.
#include "backends/network/message_schedule.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "exchange/status.h"
#include "planner/planner.h"
#include "planner/table.h"
#include "support/allocations.h"
#include "support/check.h"
#include "support/group_exchange.h"
#include "support/sites.h"
#include "support/table_words.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using network::MessageSchedule;
using network::StepRows;
using planner::Scheduler;

const std::string kPrefix = "exchange over axis 'x' (channel 7): ";

// Buffers of their own for each device, which sanitizers watch the ends of.
struct Setting : GroupExchange {
  Setting(const planner::Topology& t, Scheduler s, Owners owners, uint64_t seed, int64_t bytes = 4, int32_t updates = 2,
          bool overlap = false)
      : GroupExchange(t.devices(), seed), topology(t), scheduler(s), row_bytes(bytes) {
    processes = Deal(owners, t.devices_per_server, &random, site.get());
    Plan(t, s, Fill(t, [&](int32_t, int32_t) { return random() % 12; }), updates, overlap);
    Point(false);
  }

  // Makes arguments of the metadata, for one direction.
  void Point(bool reverse) {
    Bring(reverse, row_bytes);
    buffers.clear();
    const auto make = [&](int64_t rows) {
      buffers.push_back(std::make_unique<std::vector<std::byte>>(static_cast<size_t>(rows * row_bytes)));
      return buffers.back()->data();
    };
    for (ExchangeArgs& device : args) {
      device.element = kernels::ElementKind::kF32;
      device.source = make(device.source_rows);
      device.destination = make(device.destination_rows);
    }
  }

  Status Build(int32_t process, MessageSchedule* schedule, bool backwards = false) const {
    Decode(process, backwards, &plans);
    return schedule->Build(*site, 0, process, args, plans, traffic);
  }

  planner::Topology topology;
  Scheduler scheduler;
  int64_t row_bytes;
  int32_t processes = 0;
  std::vector<std::unique_ptr<std::vector<std::byte>>> buffers;
  mutable DevicePlans plans;  // of one process
};

// Reads and writes everything that the schedule names, and returns how much that is.
int64_t TouchAll(const MessageSchedule& schedule) {
  int64_t bytes = 0;
  std::vector<std::byte> read;
  for (size_t s = 0; s < schedule.steps().size(); ++s) {
    const Step& step = schedule.steps()[s];
    const StepRows& rows = schedule.rows()[s];
    int64_t of_step = 0;
    for (int32_t i = rows.first; i < rows.first + rows.count; ++i) {
      if (step.action == Action::kCopy) {
        const CopyOp& op = schedule.copies()[i];
        std::memmove(op.dst, op.src, static_cast<size_t>(op.bytes));
        of_step += op.bytes;
        continue;
      }
      const Iov& iov = schedule.iovs()[i];
      auto* data = static_cast<std::byte*>(iov.data);
      if (step.action == Action::kReceive) std::memset(data, 1, iov.bytes);
      read.assign(data, data + iov.bytes);
      of_step += static_cast<int64_t>(iov.bytes);
    }
    CHECK_EQ(of_step, rows.bytes);
    CHECK_GT(of_step, 0);
    bytes += of_step;
  }
  return bytes;
}

// First: there is no staging memory from before. That of devices is in the tests of exchanges in memory.
TEST(NoMemoryForArrivals) {
  Setting setting(MakeTopology(2, 2), Scheduler::kFast, Owners::kServers, 4, 100'000);
  const int32_t process = setting.site->process_of[setting.site->partition(0, 0)];
  int64_t arriving = 0;
  for (int32_t p = 0; p < 4; ++p) {
    for (int32_t q = 0; q < 4; ++q) {
      const auto here = [&](int32_t at) { return setting.site->process_of[setting.site->partition(0, at)] == process; };
      if (here(p) && !here(q)) arriving += setting.traffic.rows(setting.site->rank_of[q], setting.site->rank_of[p]);
    }
  }
  MessageSchedule schedule;
  const NoStagingMemory no_memory;
  const Status status = schedule.BuildSum(*setting.site, 0, process, setting.args, setting.traffic);
  CHECK(status.code == Code::kInternal);
  CHECK_EQ(status.message, kPrefix + "no memory for " + std::to_string(100'000 * arriving) +
                               " bytes of rows to be summed; exchange fewer rows at a time.");
  schedule.Release();
}

// Rows that lie together are one iov, however many transfers they were.
TEST(IovsAreJoined) {
  Setting setting(MakeTopology(2, 1), Scheduler::kFast, Owners::kServers, 1, 8, 3);
  for (int32_t p = 0; p < 2; ++p) {
    Metadata& mine = setting.layout[p];
    mine.send_sizes = mine.recv_sizes = {40, 30, 50, 40, 30, 50};
    mine.input_offsets = mine.output_offsets = {0, 40, 70, 120, 160, 190};
    mine.operand_rows = mine.output_rows = 240;
  }
  setting.tables = MakeTables(*setting.site, setting.topology, setting.scheduler,
                              Fill(setting.topology, [](int32_t, int32_t) { return 120; }));
  setting.Point(false);
  MessageSchedule schedule;
  CHECK_EQ(setting.Build(0, &schedule).message, "");
  CHECK_GT(schedule.plan_stages(), 0);
  for (const StepRows& rows : schedule.rows()) CHECK_EQ(rows.count, 1);
  CHECK_EQ(TouchAll(schedule), 3 * 120 * 8);  // what stays, what is sent and what comes
  schedule.Release();
}

// Tables that are sound by themselves but wrong: whatever they say, nothing outside the buffers is named.
TEST(WrongTables) {
  constexpr int32_t kRounds = 2000;
  int64_t refused = 0;
  Setting setting(MakeTopology(2, 4), Scheduler::kFast, Owners::kHalves, 2);
  MessageSchedule schedule;
  for (int32_t round = 0; round < kRounds; ++round) {
    const bool backwards = round % 2 == 1;
    setting.Point(backwards);
    std::vector<int32_t>& table = setting.tables[setting.random() % 8];
    const std::vector<int32_t> good = table;
    Damage(&table, &setting.random);
    bool usable = true;
    for (int32_t p = 0; p < 8; ++p) {
      const char* wrong = planner::TableView::Check(
          setting.tables[p].data(), static_cast<int64_t>(setting.tables[p].size()), 8, setting.site->rank_of[p]);
      usable = usable && (wrong == nullptr || *wrong == '\0');
    }
    bool fine = usable;
    for (int32_t process = 0; usable && process < setting.processes; ++process) {
      const Status status = setting.Build(process, &schedule, backwards);
      CHECK(status.ok() || status.code == Code::kInvalidArgument);
      if (status.ok()) TouchAll(schedule);
      fine = fine && status.ok();
      schedule.Release();
    }
    refused += fine ? 0 : 1;
    table = good;
  }
  CHECK_GT(refused, kRounds / 4);
  CHECK_LT(refused, kRounds);  // some are not noticed, and they are what this is about
}

// More rows in every entry of a table than there are.
void WidenAll(std::vector<int32_t>* table) {
  for (int64_t at = planner::kHeaderWords + 2 * 4; at < UsedWords(*table); at += planner::kEntryWords) {
    (*table)[static_cast<size_t>(at) + 7] = 1 << 30;
  }
}

// A schedule that has seen its largest exchange builds the next without allocating.
TEST(Warm) {
  for (const bool reverse : {false, true}) {
    Setting setting(MakeTopology(4, 2), Scheduler::kFast, Owners::kServers, 5, 4, 2, reverse);
    MessageSchedule schedule;
    setting.Point(reverse);
    setting.Decode(1, reverse, &setting.plans);
    for (const bool warm : {false, true}) {
      const long before = Allocations();
      const bool ok = schedule.Build(*setting.site, 0, 1, setting.args, setting.plans, setting.traffic).ok();
      schedule.Release();
      const bool sum_ok = schedule.BuildSum(*setting.site, 0, 1, setting.args, setting.traffic).ok();
      schedule.Release();
      const long allocations = Allocations() - before;
      CHECK(ok && sum_ok);
      CHECK_EQ(allocations == 0, warm);
    }
  }
}

// Rows of no bytes: nothing to do, but tables are still looked at.
TEST(Nothing) {
  Setting setting(MakeTopology(2, 2), Scheduler::kFast, Owners::kServers, 6, 0);
  MessageSchedule schedule;
  CHECK(setting.Build(0, &schedule).ok());
  CHECK(schedule.steps().empty());
  schedule.Release();
  const int32_t process = setting.site->process_of[setting.site->partition(0, 0)];
  WidenAll(&setting.tables[0]);
  CHECK(!setting.Build(process, &schedule).ok());
  schedule.Release();
  CHECK(schedule.BuildSum(*setting.site, 0, process, setting.args, setting.traffic).ok());
  CHECK(schedule.steps().empty());
  schedule.Release();
}

}  // namespace
}  // namespace fastjax::test
