// The yardstick makes whole, correct plans: replayed as those of the planner are, with Birkhoff's promises checked.
#include "textbook.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "matching.h"
#include "support/check.h"
#include "support/replay.h"
#include "support/traffic.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using bench::Search;
using bench::Textbook;
using planner::Topology;
using planner::Transfer;

// Tries every assignment: rows from `row` on to columns that `used` has not.
int32_t LargestMatching(const std::vector<int64_t>& matrix, size_t row, std::vector<bool>* used) {
  const size_t size = used->size();
  if (row == size) return 0;
  int32_t best = LargestMatching(matrix, row + 1, used);
  for (size_t column = 0; column < size; ++column) {
    if (matrix[row * size + column] == 0 || (*used)[column]) continue;
    (*used)[column] = true;
    best = std::max(best, 1 + LargestMatching(matrix, row + 1, used));
    (*used)[column] = false;
  }
  return best;
}

// Graphs of all densities, and the same graph without the edges of the matching that was found.
template <typename Matching>
void TestMatching() {
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    const int32_t size = 1 + static_cast<int32_t>(random() % 6);
    const uint64_t density = 1 + random() % 9;
    std::vector<int64_t> matrix(static_cast<size_t>(size) * size);
    for (int64_t& entry : matrix) entry = random() % 10 < density ? 1 + static_cast<int64_t>(random() % 5) : 0;
    Matching matching(size);
    matching.Begin(matrix.data());
    for (int times = 0; times < 2; ++times) {
      std::vector<bool> used(size);
      CHECK_EQ(matching.Solve(), LargestMatching(matrix, 0, &used));
      std::vector<int32_t> uses(size);
      for (int32_t row = 0; row < size; ++row) {
        const int32_t column = matching.column_of(row);
        if (column == bench::kFree) continue;
        CHECK_EQ(++uses[column], 1);
        int64_t& entry = matrix[static_cast<size_t>(row) * size + column];
        CHECK(entry > 0);
        entry = 0;
        matching.Exhaust(row, column);
      }
    }
  }
}

// Everything that devices list as senders, which is every transfer once, in an order that can be executed.
std::vector<Transfer> All(const Topology& topology, Textbook* textbook) {
  std::vector<Transfer> all;
  int64_t received = 0;
  for (int32_t device = 0; device < topology.devices(); ++device) {
    const std::vector<Transfer>& mine = textbook->List(device);
    for (const Transfer& transfer : mine) {
      CHECK(transfer.src == device || transfer.dst == device);
      if (transfer.dst == device) ++received;
    }
    std::copy_if(mine.begin(), mine.end(), std::back_inserter(all),
                 [&](const Transfer& transfer) { return transfer.src == device; });
  }
  CHECK_EQ(received, static_cast<int64_t>(all.size()));
  std::stable_sort(all.begin(), all.end(), [](const Transfer& a, const Transfer& b) {
    return std::tuple(a.stage, a.phase) < std::tuple(b.stage, b.phase);
  });
  return all;
}

int64_t BusiestRail(const Topology& topology, const Matrix& traffic) {
  const int32_t n = topology.servers;
  Matrix sums(static_cast<size_t>(n) * n);
  for (int32_t i = 0; i < topology.devices(); ++i) {
    for (int32_t j = 0; j < topology.devices(); ++j) {
      const int32_t pair = topology.server_of(i) * n + topology.server_of(j);
      if (topology.server_of(i) != topology.server_of(j)) sums[pair] += traffic[i * topology.devices() + j];
    }
  }
  int64_t busiest = 0;
  for (int32_t a = 0; a < n; ++a) {
    int64_t leaving = 0;
    int64_t entering = 0;
    for (int32_t b = 0; b < n; ++b) {
      const int64_t m = topology.devices_per_server;
      leaving += (sums[a * n + b] + m - 1) / m;
      entering += (sums[b * n + a] + m - 1) / m;
    }
    busiest = std::max({busiest, leaving, entering});
  }
  return busiest;
}

void TestPlans(Search search) {
  const int32_t shapes[][2] = {{1, 1}, {1, 8}, {2, 1}, {8, 1}, {2, 4}, {4, 2}, {3, 3}, {5, 2}, {4, 8}, {12, 2}};
  for (const auto& shape : shapes) {
    const Topology topology = MakeTopology(shape[0], shape[1]);
    const int64_t n = topology.servers;
    Textbook textbook(topology, search);
    for (const Case& test_case : MakeCases(topology, 31 * shape[0] + shape[1])) {
      const Context context(std::to_string(n) + "x" + std::to_string(shape[1]) + ", " + test_case.name);
      textbook.Decompose(test_case.traffic.data());
      const std::vector<Transfer> all = All(topology, &textbook);
      CheckShape(topology, all, textbook.num_stages());
      CheckReplay(topology, test_case.traffic, all, StagingRows(textbook, topology.devices()));
      CheckOneToOne(topology, all);
      CHECK_LE(textbook.num_stages(), n * n - 2 * n + 2);
      CHECK_EQ(textbook.length(), BusiestRail(topology, test_case.traffic));
    }
  }
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestMatching<fastjax::bench::Kuhn>();
  fastjax::test::TestMatching<fastjax::bench::HopcroftKarp>();
  for (const fastjax::bench::Search search : fastjax::bench::kSearches) fastjax::test::TestPlans(search);
  return fastjax::test::Finish("textbook_test");
}
