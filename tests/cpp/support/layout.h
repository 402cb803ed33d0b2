// Where the rows of an exchange lie: what callers pass as offsets and sizes, made at random for given traffic.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_LAYOUT_H_
#define FASTJAX_TESTS_CPP_SUPPORT_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/int_view.h"
#include "exchange/operation.h"
#include "planner/planner.h"
#include "planner/table.h"
#include "support/sites.h"
#include "support/traffic.h"

namespace fastjax::test {

// One device's offsets and sizes, and the rows of its buffers.
struct Metadata {
  std::vector<int64_t> input_offsets;
  std::vector<int64_t> send_sizes;
  std::vector<int64_t> output_offsets;
  std::vector<int64_t> recv_sizes;
  int64_t operand_rows = 0;
  int64_t output_rows = 0;

  // Without buffers, which checks do not look at.
  ExchangeArgs Args(bool reverse) const {
    ExchangeArgs args;
    args.source_rows = reverse ? output_rows : operand_rows;
    args.destination_rows = reverse ? operand_rows : output_rows;
    args.row_bytes = 1;
    const auto view = [](const std::vector<int64_t>& values) {
      return IntView{values.data(), static_cast<int64_t>(values.size()), IntKind::kS64};
    };
    args.input_offsets = view(input_offsets);
    args.send_sizes = view(send_sizes);
    args.output_offsets = view(output_offsets);
    args.recv_sizes = view(recv_sizes);
    return args;
  }
};

// One update: rows of the sender's operand that go to the receiver's output. In positions.
struct Update {
  int32_t sender;
  int32_t receiver;
  int64_t input_offset;
  int64_t output_offset;
  int64_t rows;
};

// A group's metadata by position.
using Layout = std::vector<Metadata>;

// Every update, senders in order, then receivers, then updates as they stand.
inline std::vector<Update> Updates(const Layout& layout) {
  const auto devices = static_cast<int32_t>(layout.size());
  std::vector<Update> updates;
  for (int32_t sender = 0; sender < devices; ++sender) {
    const Metadata& from = layout[sender];
    const size_t per_peer = from.send_sizes.size() / layout.size();
    for (size_t u = 0; u < from.send_sizes.size(); ++u) {
      updates.push_back({sender, static_cast<int32_t>(u / per_peer), from.input_offsets[u], from.output_offsets[u],
                         from.send_sizes[u]});
    }
  }
  return updates;
}

// Splits each block of `traffic` (by rank) into `per_peer` updates and strews them over operands and outputs with gaps
// between them; with `overlap` any two slices of an operand may share rows.
inline Layout MakeLayout(const CallSite& site, const Matrix& traffic, int32_t per_peer, bool overlap,
                         std::mt19937_64* random) {
  const int32_t devices = site.group_size;
  const auto below = [&](int64_t n) { return static_cast<int64_t>((*random)() % static_cast<uint64_t>(n)); };
  const auto entries = static_cast<size_t>(devices) * static_cast<size_t>(per_peer);
  Layout layout(static_cast<size_t>(devices));
  for (Metadata& device : layout) {
    // Offsets of updates without rows may be anything.
    device.input_offsets.assign(entries, -77);
    device.output_offsets.assign(entries, int64_t{1} << 40);
    device.send_sizes.assign(entries, 0);
    device.recv_sizes.assign(entries, 0);
  }
  for (int32_t i = 0; i < devices; ++i) {
    for (int32_t j = 0; j < devices; ++j) {
      int64_t left = traffic[static_cast<size_t>(site.rank_of[i]) * devices + site.rank_of[j]];
      for (int32_t u = 0; u < per_peer; ++u) {
        const int64_t rows = u + 1 == per_peer ? left : below(left + 1);
        layout[i].send_sizes[static_cast<size_t>(j) * per_peer + u] = rows;
        layout[j].recv_sizes[static_cast<size_t>(i) * per_peer + u] = rows;
        left -= rows;
      }
    }
  }
  for (int32_t device = 0; device < devices; ++device) {
    Metadata& mine = layout[device];
    int64_t end = below(3);
    for (const int32_t u : Numbers(static_cast<int32_t>(entries), random)) {
      const int64_t rows = mine.send_sizes[u];
      if (rows == 0) continue;
      mine.input_offsets[u] = overlap ? below(end + 1) : end;
      end = std::max(end, mine.input_offsets[u] + rows) + below(3);
    }
    mine.operand_rows = end + below(3);
    end = below(3);
    for (const int32_t u : Numbers(static_cast<int32_t>(entries), random)) {
      const int64_t rows = mine.recv_sizes[u];
      if (rows == 0) continue;
      layout[u / per_peer].output_offsets[static_cast<size_t>(device) * per_peer + u % per_peer] = end;
      end += rows + below(3);
    }
    mine.output_rows = end + below(3);
  }
  // Programs have the same shapes on every device.
  for (int64_t Metadata::* rows : {&Metadata::operand_rows, &Metadata::output_rows}) {
    int64_t most = 0;
    for (const Metadata& device : layout) most = std::max(most, device.*rows);
    for (Metadata& device : layout) device.*rows = most;
  }
  return layout;
}

// The tables of a group, by position.
using Tables = std::vector<std::vector<int32_t>>;

inline Tables MakeTables(const CallSite& site, const planner::Topology& topology, planner::Scheduler scheduler,
                         const Matrix& traffic) {
  planner::Planner plan(topology, scheduler, 4096);
  plan.Plan(traffic.data());
  Tables tables(static_cast<size_t>(site.group_size));
  for (int32_t p = 0; p < site.group_size; ++p) {
    tables[p].resize(static_cast<size_t>(planner::TableWords(topology, scheduler)));
    if (!planner::WriteTable(&plan, site.rank_of[p], tables[p].data())) tables[p].clear();
  }
  return tables;
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_LAYOUT_H_
