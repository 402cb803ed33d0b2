// A group's offsets and sizes: where they put every row, and what is said when they cannot be right.
#include "exchange/group_traffic.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/counts.h"
#include "exchange/int_view.h"
#include "exchange/status.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/layout.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {
namespace {

using planner::Scheduler;

std::vector<ExchangeArgs> Args(const Layout& layout, bool reverse = false) {
  std::vector<ExchangeArgs> args;
  for (const Metadata& device : layout) args.push_back(device.Args(reverse));
  return args;
}

std::vector<ExchangeArgs> Args(const Layout& layout, const Tables& tables) {
  std::vector<ExchangeArgs> args = Args(layout);
  for (size_t p = 0; p < args.size(); ++p) {
    args[p].table = tables[p].data();
    args[p].table_words = static_cast<int64_t>(tables[p].size());
  }
  return args;
}

using RowPair = std::pair<int64_t, int64_t>;  // source row, destination row

// Row by row, in the order in which blocks count them.
std::vector<RowPair> BlockRows(const CallSite& site, const Layout& layout, int32_t origin, int32_t target,
                               bool reverse) {
  std::vector<RowPair> rows;
  for (const Update& update : Updates(layout)) {
    const int32_t sender = site.rank_of[update.sender];
    const int32_t receiver = site.rank_of[update.receiver];
    if ((reverse ? receiver : sender) != origin || (reverse ? sender : receiver) != target) continue;
    for (int64_t row = 0; row < update.rows; ++row) {
      const int64_t in = update.input_offset + row;
      const int64_t out = update.output_offset + row;
      rows.emplace_back(reverse ? out : in, reverse ? in : out);
    }
  }
  return rows;
}

void CheckRuns(const GroupTraffic& traffic, const std::vector<RowPair>& rows, int32_t origin, int32_t target,
               int64_t first, int64_t count) {
  std::vector<RowPair> visited;
  bool empty_run = false;
  traffic.ForEachRun(origin, target, first, count, [&](const Run& run) {
    empty_run = empty_run || run.rows <= 0;
    for (int64_t row = 0; row < run.rows; ++row) {
      visited.emplace_back(run.source_row + row, run.destination_row + row);
    }
  });
  CHECK(!empty_run);
  CHECK(visited == std::vector<RowPair>(rows.begin() + first, rows.begin() + first + count));
}

// Everything that comes back to a target, once, in order of its rows there and then of the ranks that have it.
void CheckReturned(const GroupTraffic& traffic, const std::vector<std::vector<RowPair>>& blocks, int32_t target) {
  std::vector<ReturnedSlice> slices;
  traffic.ListReturned(target, &slices);
  std::vector<size_t> visited(blocks.size());
  std::pair<int64_t, int32_t> last = {-1, -1};
  traffic.ForEachReturned(target, slices, [&](int32_t origin, const Run& run, int64_t done) {
    const std::pair<int64_t, int32_t> now = {run.destination_row, origin};
    CHECK(last <= now);
    last = now;
    for (int64_t row = 0; row < run.rows; ++row) {
      CHECK(blocks[origin][done + row] == RowPair(run.source_row + row, run.destination_row + row));
    }
    visited[origin] += static_cast<size_t>(run.rows);
  });
  for (size_t origin = 0; origin < blocks.size(); ++origin) CHECK_EQ(visited[origin], blocks[origin].size());
}

bool RowsLandTwice(const std::vector<std::vector<RowPair>>& blocks_of_target, int64_t destination_rows) {
  std::vector<int> landed(static_cast<size_t>(destination_rows));
  for (const auto& rows : blocks_of_target) {
    for (const RowPair& row : rows) {
      if (++landed[row.second] > 1) return true;
    }
  }
  return false;
}

void CheckLayout(const CallSite& site, const Layout& layout, const Matrix& matrix, bool reverse, GroupTraffic* traffic,
                 std::mt19937_64* random) {
  const std::vector<ExchangeArgs> args = Args(layout, reverse);
  const Status status = traffic->Load(site, 0, args, reverse);
  CHECK_EQ(status.message, "");
  CHECK(status.ok());
  bool overlap = false;
  for (int32_t target = 0; target < site.group_size; ++target) {
    std::vector<std::vector<RowPair>> blocks;
    for (int32_t origin = 0; origin < site.group_size; ++origin) {
      const int32_t from = reverse ? target : origin;
      const int32_t to = reverse ? origin : target;
      const int64_t count = matrix[static_cast<size_t>(from) * site.group_size + to];
      CHECK_EQ(traffic->rows(origin, target), count);
      blocks.push_back(BlockRows(site, layout, origin, target, reverse));
      CHECK_EQ(static_cast<int64_t>(blocks.back().size()), count);
      CheckRuns(*traffic, blocks.back(), origin, target, 0, count);
      for (int round = 0; round < 3 && count > 0; ++round) {
        const auto first = static_cast<int64_t>((*random)() % static_cast<uint64_t>(count));
        const auto rows = static_cast<int64_t>((*random)() % static_cast<uint64_t>(count - first + 1));
        CheckRuns(*traffic, blocks.back(), origin, target, first, rows);
      }
    }
    if (reverse) CheckReturned(*traffic, blocks, target);
    overlap = overlap || RowsLandTwice(blocks, args.front().destination_rows);
  }
  CHECK_EQ(traffic->DestinationsOverlap(), overlap);
  CHECK_EQ(traffic->CheckDestinations(0).ok(), !overlap);
}

TEST(Runs) {
  std::mt19937_64 random(1);
  GroupTraffic traffic;  // one for all of it, as an exchange uses it
  for (const int32_t devices : {1, 2, 5, 8}) {
    for (const int32_t per_peer : {1, 2, 4}) {
      const planner::Topology topology = MakeTopology(devices, 1);
      const auto site = MakeSite(1, devices, kNoTimeoutMs, &random);
      for (const Case& test_case : MakeCases(topology, 5)) {
        for (const bool overlap : {false, true}) {
          const Layout layout = MakeLayout(*site, test_case.traffic, per_peer, overlap, &random);
          for (const bool reverse : {false, true}) {
            const Context context(std::to_string(devices) + " devices, " + std::to_string(per_peer) + " updates, " +
                                  test_case.name + (overlap ? ", overlap" : "") + (reverse ? ", reverse" : ""));
            CheckLayout(*site, layout, test_case.traffic, reverse, &traffic, &random);
          }
        }
      }
    }
  }
}

TEST(NoUpdates) {
  const auto site = MakeSite(1, 3);
  GroupTraffic traffic;
  CHECK(traffic.Load(*site, 0, Args(Layout(3)), false).ok());
  for (int32_t origin = 0; origin < 3; ++origin) CHECK_EQ(traffic.rows(origin, 1), 0);
  CHECK(!traffic.DestinationsOverlap());
}

// Three devices, ranks in the order 2, 0, 1; everyone sends two updates of two rows to everyone, in the order of peers.
Layout PlainLayout() {
  Layout layout(3);
  for (int32_t p = 0; p < 3; ++p) {
    layout[p].send_sizes.assign(6, 2);
    layout[p].recv_sizes.assign(6, 2);
    layout[p].operand_rows = 12;
    layout[p].output_rows = 14;
    for (int32_t u = 0; u < 6; ++u) {
      layout[p].input_offsets.push_back(2 * u);
      layout[p].output_offsets.push_back(4 * p + 2 * (u % 2));
    }
  }
  return layout;
}

std::shared_ptr<CallSite> PlainSite(int32_t groups) {
  auto site = MakeSite(groups, 3);
  site->rank_of = {2, 0, 1};
  site->position_at = {1, 2, 0};
  return site;
}

using Damage = std::function<void(Layout*)>;

// Of a layout that is right but for the damage: what `look` says of it, and nothing else.
void CheckRefusal(int32_t groups, const Damage& damage, const std::string& message,
                  const std::function<Status(GroupTraffic*, const CallSite&, const Layout&)>& look) {
  const auto site = PlainSite(groups);
  Layout layout = PlainLayout();
  damage(&layout);
  GroupTraffic traffic;
  const Status status = look(&traffic, *site, layout);
  CHECK(status.code == Code::kInvalidArgument);
  CHECK_EQ(status.message, "exchange over axis 'x' (channel 7): " + message);
}

TEST(RefusedMetadata) {
  constexpr int64_t kLargest = INT64_MAX;
  const std::string two_output_rows =
      " reach beyond the output of device 1, which has 14 rows. output_offsets count rows of the receiver's output, as "
      "seen by the sender.";
  const auto refused = [](const std::string& what, bool reverse, const Damage& damage) {
    CheckRefusal(1, damage, what, [reverse](GroupTraffic* traffic, const CallSite& site, const Layout& layout) {
      return traffic->Load(site, 0, Args(layout, reverse), reverse);
    });
  };
  // The same in both directions: offsets mean the same rows.
  for (const bool reverse : {false, true}) {
    const auto on_2 = [&](const std::string& what, auto change) {
      refused("on device 2, " + what, reverse, [&](Layout* layout) { change(&(*layout)[2]); });
    };
    on_2("send_sizes[3] = -1; a size must be 0 or more.", [](Metadata* m) { m->send_sizes[3] = -1; });
    on_2("recv_sizes[5] = -9; a size must be 0 or more.", [](Metadata* m) { m->recv_sizes[5] = -9; });
    on_2("input_offsets[4] = -2; an offset must be 0 or more.", [](Metadata* m) { m->input_offsets[4] = -2; });
    on_2("output_offsets[0] = -3; an offset must be 0 or more.", [](Metadata* m) { m->output_offsets[0] = -3; });
    const auto in = [&](int64_t offset, int64_t rows) {
      on_2("input_offsets[1] = " + std::to_string(offset) + " and send_sizes[1] = " + std::to_string(rows) +
               " reach beyond the operand, which has 12 rows.",
           [=](Metadata* m) {
             m->input_offsets[1] = offset;
             m->send_sizes[1] = rows;
           });
    };
    in(11, 2);
    in(kLargest, 2);
    in(0, 13);
    in(0, kLargest);
    in(kLargest, kLargest);
    const auto out = [&](int64_t offset) {
      on_2("output_offsets[2] = " + std::to_string(offset) + " and send_sizes[2] = 2" + two_output_rows,
           [=](Metadata* m) { m->output_offsets[2] = offset; });
    };
    out(13);
    out(kLargest);
    on_2("output_offsets[2] = 0 and send_sizes[2] = 15" + two_output_rows, [](Metadata* m) {
      m->operand_rows = 20;
      m->input_offsets[2] = 0;
      m->output_offsets[2] = 0;
      m->send_sizes[2] = 15;
    });
  }
}

TEST(RefusedPairs) {
  const auto refused = [](int32_t groups, int32_t group, const std::string& what, const Damage& damage) {
    CheckRefusal(groups, damage,
                 what +
                     ". recv_sizes must be send_sizes seen from the receivers: "
                     "jax.lax.all_to_all(send_sizes, axis_name, 0, 0, tiled=True).",
                 [&](GroupTraffic* traffic, const CallSite& site, const Layout& layout) {
                   return traffic->Load(site, group, Args(layout), false);
                 });
  };
  refused(1, 0, "device 2 sends 1 rows to device 0 (send_sizes[1]), which expects 2 (recv_sizes[5])",
          [](Layout* layout) { (*layout)[2].send_sizes[1] = 1; });
  refused(1, 0, "device 0 sends 2 rows to device 1 (send_sizes[2]), which expects 7 (recv_sizes[0])",
          [](Layout* layout) { (*layout)[1].recv_sizes[0] = 7; });
  refused(2, 1,
          "device 0 of group 1 sends 2 rows to device 1 of group 1 (send_sizes[3]), which expects 0 (recv_sizes[1])",
          [](Layout* layout) { (*layout)[1].recv_sizes[1] = 0; });
}

// Of the entries that slices have, and of no others.
TEST(RefusedIndices) {
  const auto site = PlainSite(1);
  Layout layout = PlainLayout();
  layout[2].operand_rows = 14;  // slices have twelve of them
  for (int32_t entry = 0; entry < 14; ++entry) {
    for (const int32_t index : {-1, 0, 3, 4}) {
      std::vector<int32_t> indices(14, 3);
      indices[static_cast<size_t>(entry)] = index;
      std::vector<ExchangeArgs> args = Args(layout);
      args[2].indices = indices.data();
      args[2].indexed_rows = 4;
      GroupTraffic traffic;
      CHECK(traffic.Load(*site, 0, args, false).ok());
      const Status status = traffic.CheckIndices(*site, 0, args);
      const bool fine = entry >= 12 || index == 0 || index == 3;
      CHECK(status.code == (fine ? Code::kOk : Code::kInvalidArgument));
      CHECK_EQ(status.message, fine ? ""
                                    : "exchange over axis 'x' (channel 7): on device 2, indices[" +
                                          std::to_string(entry) + "] = " + std::to_string(index) +
                                          " is not one of the 4 rows.");
    }
  }
}

// Send sizes of an MoE layer that name an expert there is not.
TEST(RefusedExperts) {
  const auto refusal = [](int64_t size) {
    const auto site = MakeSite(1, 2);
    site->experts = 8;
    const std::vector<int64_t> sizes = {1, size}, fine = {1, 1};
    std::vector<int64_t> traffic, scratch;
    const Status status = SumCounts(*site, 0, {{{fine.data(), 2, IntKind::kS64}}, {{sizes.data(), 2, IntKind::kS64}}},
                                    &traffic, &scratch);
    CHECK(status.code == Code::kInvalidArgument);
    return status.message;
  };
  const auto words = [](const std::string& expert) {
    return "exchange over axis 'x' (channel 7): on device 1, moe.dispatch was given the expert " + expert +
           " in expert_ids; want 0 to 7, or -1 for choices that go nowhere.";
  };
  constexpr int64_t negative = int64_t{1} << 30;
  CHECK_EQ(refusal(-8), words("8"));
  CHECK_EQ(refusal(-negative - 8), words("-8"));
  CHECK_EQ(refusal(-negative + 2), words("1073741822"));
  CHECK_EQ(refusal(-negative + 1), words("1073741823 or more"));
  CHECK_EQ(refusal(-2 * negative + 1), words("-1073741823 or less"));
}

TEST(UncheckedOffsets) {
  const auto site = PlainSite(1);
  Layout layout = PlainLayout();
  layout[1].send_sizes[2] = 0;
  layout[1].recv_sizes[2] = 0;
  layout[1].input_offsets[2] = -1;
  layout[1].output_offsets[2] = INT64_MAX;
  GroupTraffic traffic;
  CHECK_EQ(traffic.Load(*site, 0, Args(layout), false).message, "");
  CHECK_EQ(traffic.rows(site->rank_of[1], site->rank_of[1]), 2);
}

TEST(RefusedLandings) {
  const auto refused = [](int32_t groups, int32_t group, const std::string& what, const Damage& damage) {
    CheckRefusal(
        groups, damage,
        what + ": output_offsets overlap, and which rows stay is not defined. Give every slice rows of its own.",
        [&](GroupTraffic* traffic, const CallSite& site, const Layout& layout) {
          CHECK_EQ(traffic->Load(site, group, Args(layout), false).message, "");
          return traffic->CheckDestinations(group);
        });
  };
  // In order of rows, then of ranks; device 2 is rank 1, device 0 rank 2.
  refused(1, 0, "device 2 and device 0 both write rows 2 to 3 of the output of device 0",
          [](Layout* layout) { (*layout)[2].output_offsets[1] = 2; });
  refused(1, 0, "device 1 and device 0 both write row 5 of the output of device 1",
          [](Layout* layout) { (*layout)[0].output_offsets[3] = 5; });
  refused(2, 1, "device 2 of group 1 writes row 9 of the output of device 2 of group 1 twice",
          [](Layout* layout) { (*layout)[2].output_offsets[5] = 9; });
}

class TableChecks {
 public:
  explicit TableChecks(int32_t groups) : site_(MakeSite(groups, 4)), random_(2) {
    site_->rank_of = {3, 0, 2, 1};
    site_->position_at = {1, 3, 2, 0};
  }

  const CallSite& site() const { return *site_; }
  const Matrix& matrix() const { return matrix_; }
  Tables MakeTables(const Matrix& matrix) const {
    return test::MakeTables(*site_, topology_, Scheduler::kFast, matrix);
  }

  std::string Check(const Matrix& matrix, const Tables& tables, bool transposed, int32_t group = 0) {
    const Layout layout = MakeLayout(*site_, matrix, 2, false, &random_);
    const std::vector<ExchangeArgs> args = Args(layout, tables);
    GroupTraffic traffic;
    CHECK(traffic.Load(*site_, group, args, false).ok());
    const Status status = traffic.CheckTables(*site_, group, args, transposed);
    CHECK(status.code == (status.message.empty() ? Code::kOk : Code::kInvalidArgument));
    return status.message;
  }

 private:
  std::shared_ptr<CallSite> site_;
  std::mt19937_64 random_;
  planner::Topology topology_ = MakeTopology(2, 2);
  Matrix matrix_ = Fill(topology_, [](int32_t i, int32_t j) { return 10 * i + j; });
};

TEST(Tables) {
  const std::string prefix = "exchange over axis 'x' (channel 7): ";
  const std::string unchanged = ". Pass what plan_ragged_all_to_all returned on that device for this axis, unchanged.";
  for (const int32_t groups : {1, 2}) {
    TableChecks checks(groups);
    const std::string of_group = groups > 1 ? " of group 1" : "";
    const Matrix& matrix = checks.matrix();
    const Matrix transposed = Transposed(MakeTopology(2, 2), matrix);
    const Tables good = checks.MakeTables(matrix);
    const auto check = [&](const Matrix& sizes, const Tables& tables, bool way_back) {
      return checks.Check(sizes, tables, way_back, groups - 1);
    };
    CHECK_EQ(check(matrix, good, false), "");
    CHECK_EQ(check(transposed, good, true), "");

    const auto does_not_fit = [&](int planned, int p, int q, int sent) {
      return prefix + "the plan does not fit: it is for " + std::to_string(planned) + " rows from device " +
             std::to_string(p) + of_group + " to device " + std::to_string(q) + of_group + ", send_sizes has " +
             std::to_string(sent) +
             ". Plan with the send_sizes of this exchange, and pass plan.transpose() for the way back.";
    };
    // Positions 0 and 1 are ranks 3 and 0.
    CHECK_EQ(check(matrix, good, true), does_not_fit(3, 0, 1, 30));
    CHECK_EQ(check(transposed, good, false), does_not_fit(30, 0, 1, 3));
    Matrix other = matrix;
    other[2 * 4 + 1] = 50;  // positions 2 and 3
    CHECK_EQ(check(other, good, false), does_not_fit(21, 2, 3, 50));

    const auto unusable = [&](int p, const std::string& what) {
      return prefix + "the plan of device " + std::to_string(p) + of_group + " is not usable: stage table: " + what +
             unchanged;
    };
    Tables damaged = good;
    damaged[2][planner::kHeaderWords + 1] ^= 4;
    CHECK_EQ(check(matrix, damaged, false), unusable(2, "checksum does not match"));
    damaged = good;
    std::swap(damaged[1], damaged[3]);
    CHECK_EQ(check(matrix, damaged, false), unusable(1, "made for another device"));
    damaged = good;
    damaged[3].resize(3);
    CHECK_EQ(check(matrix, damaged, false), unusable(3, "shorter than its header"));
    damaged = good;
    damaged[0].assign(damaged[0].size(), 0);
    CHECK_EQ(check(matrix, damaged, false), unusable(0, "not a stage table"));

    damaged = good;
    damaged[2] = checks.MakeTables(other)[2];
    CHECK_EQ(check(matrix, damaged, false), prefix + "device 2" + of_group + " holds another plan than device 0" +
                                                of_group +
                                                ". Pass every device the plan of one plan_ragged_all_to_all call.");
  }
}

}  // namespace
}  // namespace fastjax::test
