// What is said of a group's offsets, sizes and plans that cannot be right. Where they put every row is in the tests of
// backends.
#include "exchange/group_traffic.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "exchange/call_site.h"
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

// What Python's programs are refused as well, by another text (tests/exchange_checks/mistakes.py), is not repeated:
// sums that would overflow, the names of groups, and the order in which devices are named.
TEST(Refusals) {
  constexpr int64_t kLargest = INT64_MAX;
  const std::string hint =
      " reach beyond the output of device 1, which has 14 rows. output_offsets count rows of the receiver's output, as "
      "seen by the sender.";
  const auto load = [](int32_t group, bool reverse) {
    return [=](GroupTraffic* traffic, const CallSite& site, const Layout& layout) {
      return traffic->Load(site, group, Args(layout, reverse), reverse);
    };
  };
  // The same in both directions: offsets mean the same rows.
  for (const bool reverse : {false, true}) {
    for (const auto& [offset, rows] :
         {std::pair<int64_t, int64_t>{11, 2}, {kLargest, 2}, {0, 13}, {0, kLargest}, {kLargest, kLargest}}) {
      CheckRefusal(
          1,
          [in = offset, size = rows](Layout* layout) {
            (*layout)[2].input_offsets[1] = in;
            (*layout)[2].send_sizes[1] = size;
          },
          "on device 2, input_offsets[1] = " + std::to_string(offset) + " and send_sizes[1] = " + std::to_string(rows) +
              " reach beyond the operand, which has 12 rows.",
          load(0, reverse));
    }
    for (const int64_t offset : {int64_t{13}, kLargest}) {
      CheckRefusal(
          1, [offset](Layout* layout) { (*layout)[2].output_offsets[2] = offset; },
          "on device 2, output_offsets[2] = " + std::to_string(offset) + " and send_sizes[2] = 2" + hint,
          load(0, reverse));
    }
  }
  CheckRefusal(
      2, [](Layout* layout) { (*layout)[1].recv_sizes[1] = 0; },
      "device 0 of group 1 sends 2 rows to device 1 of group 1 (send_sizes[3]), which expects 0 (recv_sizes[1]). "
      "recv_sizes must be send_sizes seen from the receivers: jax.lax.all_to_all(send_sizes, axis_name, 0, 0, "
      "tiled=True).",
      load(1, false));
  const auto landings = [](int32_t groups, const std::string& what, const Damage& damage) {
    CheckRefusal(
        groups, damage,
        what + ": output_offsets overlap, and which rows stay is not defined. Give every slice rows of its own.",
        [groups](GroupTraffic* traffic, const CallSite& site, const Layout& layout) {
          CHECK_EQ(traffic->Load(site, groups - 1, Args(layout), false).message, "");
          return traffic->CheckDestinations();
        });
  };
  // In order of rows, then of ranks; device 2 is rank 1, device 0 rank 2.
  landings(1, "device 2 and device 0 both write rows 2 to 3 of the output of device 0",
           [](Layout* layout) { (*layout)[2].output_offsets[1] = 2; });
  landings(2, "device 2 of group 1 writes row 9 of the output of device 2 of group 1 twice",
           [](Layout* layout) { (*layout)[2].output_offsets[5] = 9; });
}

TEST(Tables) {
  const auto site = MakeSite(2, 4);
  site->rank_of = {3, 0, 2, 1};
  site->position_at = {1, 3, 2, 0};
  const planner::Topology topology = MakeTopology(2, 2);
  const Matrix matrix = Fill(topology, [](int32_t i, int32_t j) { return 10 * i + j; });
  const Matrix transposed = Transposed(topology, matrix);
  Matrix other = matrix;
  other[2 * 4 + 1] = 50;  // positions 2 and 3
  const Tables good = MakeTables(*site, topology, Scheduler::kFast, matrix);
  std::mt19937_64 random(2);
  const auto check = [&](const Matrix& sizes, const Tables& tables, bool way_back, const std::string& message) {
    const Layout layout = MakeLayout(*site, sizes, 2, false, &random);
    const std::vector<ExchangeArgs> args = Args(layout, tables);
    GroupTraffic traffic;
    CHECK(traffic.Load(*site, 1, args, false).ok());
    const Status status = traffic.CheckTables(args, way_back);
    CHECK(status.code == (message.empty() ? Code::kOk : Code::kInvalidArgument));
    CHECK_EQ(status.message, message.empty() ? "" : "exchange over axis 'x' (channel 7): " + message);
  };
  check(matrix, good, false, "");
  check(transposed, good, true, "");

  const auto does_not_fit = [](const std::string& planned, const std::string& sent) {
    return "the plan does not fit: it is for " + planned + " of group 1, send_sizes has " + sent +
           ". Plan with the send_sizes of this exchange, and pass plan.transpose() for the way back.";
  };
  // Positions 0 and 1 are ranks 3 and 0.
  check(matrix, good, true, does_not_fit("3 rows from device 0 of group 1 to device 1", "30"));
  check(transposed, good, false, does_not_fit("30 rows from device 0 of group 1 to device 1", "3"));
  check(other, good, false, does_not_fit("21 rows from device 2 of group 1 to device 3", "50"));

  const auto unusable = [](int p, const std::string& what) {
    return "the plan of device " + std::to_string(p) + " of group 1 is not usable: stage table: " + what +
           ". Pass what plan_ragged_all_to_all returned on that device for this axis, unchanged.";
  };
  Tables damaged = good;
  damaged[2][planner::kHeaderWords + 1] ^= 4;
  check(matrix, damaged, false, unusable(2, "checksum does not match"));
  damaged = good;
  std::swap(damaged[1], damaged[3]);
  check(matrix, damaged, false, unusable(1, "made for another device"));
  damaged = good;
  damaged[3].resize(3);
  check(matrix, damaged, false, unusable(3, "shorter than its header"));
  damaged = good;
  damaged[0].assign(damaged[0].size(), 0);
  check(matrix, damaged, false, unusable(0, "not a stage table"));
  damaged = good;
  damaged[2] = MakeTables(*site, topology, Scheduler::kFast, other)[2];
  check(matrix, damaged, false,
        "device 2 of group 1 holds another plan than device 0 of group 1. Pass every device the plan of one "
        "plan_ragged_all_to_all call.");
}

}  // namespace
}  // namespace fastjax::test
