#include "exchange/counts.h"

#include <limits>
#include <string>

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

}  // namespace

Status SumCounts(const CallSite& site, int32_t group, const std::vector<CountsArgs>& args,
                 std::vector<int64_t>* traffic, std::vector<int64_t>* scratch) {
  const auto devices = static_cast<size_t>(site.group_size);
  traffic->assign(devices * devices, 0);
  for (int32_t p = 0; p < site.group_size; ++p) {
    std::vector<int64_t>& sizes = *scratch;
    sizes.resize(static_cast<size_t>(args[p].send_sizes.size));
    args[p].send_sizes.CopyTo(sizes.data());
    const int64_t per_peer = args[p].send_sizes.size / site.group_size;
    for (size_t u = 0; u < sizes.size(); ++u) {
      if (sizes[u] < 0) {
        return Status::Invalid(site.Prefix() + "on " + site.DeviceName(group, p) + ", " +
                               WhatIsWrong(site, u, sizes[u]));
      }
      const auto peer = static_cast<int32_t>(static_cast<int64_t>(u) / per_peer);
      int64_t& block =
          (*traffic)[static_cast<size_t>(site.rank_of[p]) * devices + static_cast<size_t>(site.rank_of[peer])];
      if (sizes[u] > kMaxBlockRows - block) {
        return Status::Invalid(site.Prefix() + "a device sends 2^31 rows or more to another; split the exchange.");
      }
      block += sizes[u];
    }
  }
  return Status::Ok();
}

Status WriteTable(int32_t rank, const CountsArgs& args, planner::Planner* plan) {
  if (planner::WriteTable(plan, rank, args.table_words)) return Status::Ok();
  return Status::Internal("fastjax: a stage table has more entries than were to be expected. Please report this.");
}

}  // namespace fastjax
