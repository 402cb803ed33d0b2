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
          return traffic->CheckDestinations(groups - 1);
        });
  };
  // In order of rows, then of ranks; device 2 is rank 1, device 0 rank 2.
  landings(1, "device 2 and device 0 both write rows 2 to 3 of the output of device 0",
           [](Layout* layout) { (*layout)[2].output_offsets[1] = 2; });
  landings(2, "device 2 of group 1 writes row 9 of the output of device 2 of group 1 twice",
           [](Layout* layout) { (*layout)[2].output_offsets[5] = 9; });
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
