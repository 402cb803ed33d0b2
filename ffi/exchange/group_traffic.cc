#include "exchange/group_traffic.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "planner/table.h"

namespace fastjax {
namespace {

std::string Entry(const char* name, int64_t index, int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "] = " + std::to_string(value);
}

}  // namespace

Status GroupTraffic::Load(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args, bool reverse,
                          bool drop) {
  site_ = &site;
  group_ = group;
  reverse_ = reverse;
  drop_ = drop;
  dropped_ = 0;
  devices_ = site.group_size;
  updates_ = args.front().send_sizes.size;
  per_peer_ = updates_ / devices_;
  const size_t total = static_cast<size_t>(updates_) * static_cast<size_t>(devices_);
  for (auto* values : {&input_offsets_, &send_sizes_, &output_offsets_, &recv_sizes_}) values->resize(total);
  sent_.resize(static_cast<size_t>(devices_) * static_cast<size_t>(devices_));
  indices_.resize(static_cast<size_t>(devices_));
  for (int32_t p = 0; p < devices_; ++p) {
    const size_t at = Index(site.rank_of[p], 0);
    args[p].input_offsets.CopyTo(input_offsets_.data() + at);
    args[p].send_sizes.CopyTo(send_sizes_.data() + at);
    args[p].output_offsets.CopyTo(output_offsets_.data() + at);
    args[p].recv_sizes.CopyTo(recv_sizes_.data() + at);
  }
  const auto operand_rows = [&](int32_t p) { return reverse ? args[p].destination_rows : args[p].source_rows; };
  const auto output_rows = [&](int32_t p) { return reverse ? args[p].source_rows : args[p].destination_rows; };
  for (int32_t p = 0; p < devices_; ++p) {
    if (Status status = CheckDevice(p, operand_rows(p), output_rows(p)); !status.ok()) return status;
    indices_[static_cast<size_t>(site.rank_of[p])] = args[p].indices;
  }
  for (int32_t sender = 0; sender < devices_; ++sender) {
    for (int32_t receiver = 0; receiver < devices_; ++receiver) {
      if (Status status = CheckPair(sender, receiver); !status.ok()) return status;
      const size_t at = Index(site.rank_of[sender], receiver * per_peer_);
      for (int64_t u = 0; drop && u < per_peer_; ++u) {
        Clip(at + static_cast<size_t>(u), operand_rows(sender), output_rows(receiver));
      }
      int64_t rows = 0;
      for (int64_t u = 0; u < per_peer_; ++u) rows += send_sizes_[at + static_cast<size_t>(u)];
      sent_[static_cast<size_t>(site.rank_of[sender]) * devices_ + site.rank_of[receiver]] = rows;
    }
  }
  return Status::Ok();
}

Status GroupTraffic::Refuse(int32_t position, const std::string& what) const {
  return Status::Invalid(site_->Prefix() + "on " + DeviceName(position) + ", " + what);
}

// Offsets of entries without rows are not looked at: callers fill them with whatever a cumulative sum leaves there.
Status GroupTraffic::CheckDevice(int32_t position, int64_t operand_rows, int64_t output_rows) const {
  const auto refuse = [&](const std::string& what) { return Refuse(position, what); };
  for (int64_t u = 0; u < updates_; ++u) {
    const size_t at = Index(site_->rank_of[position], u);
    const int64_t rows = send_sizes_[at];
    if (rows < 0) return refuse(Entry("send_sizes", u, rows) + "; a size must be 0 or more.");
    if (recv_sizes_[at] < 0) return refuse(Entry("recv_sizes", u, recv_sizes_[at]) + "; a size must be 0 or more.");
    if (rows == 0 || drop_) continue;
    const int64_t in = input_offsets_[at];
    if (in < 0) return refuse(Entry("input_offsets", u, in) + "; an offset must be 0 or more.");
    if (rows > operand_rows || in > operand_rows - rows) {
      return refuse(Entry("input_offsets", u, in) + " and " + Entry("send_sizes", u, rows) +
                    " reach beyond the operand, which has " + std::to_string(operand_rows) + " rows.");
    }
    const int64_t out = output_offsets_[at];
    if (out < 0) return refuse(Entry("output_offsets", u, out) + "; an offset must be 0 or more.");
    if (rows > output_rows || out > output_rows - rows) {
      return refuse(Entry("output_offsets", u, out) + " and " + Entry("send_sizes", u, rows) +
                    " reach beyond the output of " + DeviceName(static_cast<int32_t>(u / per_peer_)) + ", which has " +
                    std::to_string(output_rows) +
                    " rows. output_offsets count rows of the receiver's output, as seen by the sender.");
    }
  }
  return Status::Ok();
}

void GroupTraffic::Clip(size_t number, int64_t operand_rows, int64_t output_rows) {
  constexpr int64_t kMost = int64_t{1} << 40;  // more than rows of any array; sums of it do not overflow
  const int64_t in = std::clamp(input_offsets_[number], -kMost, kMost);
  const int64_t out = std::clamp(output_offsets_[number], -kMost, kMost);
  const int64_t rows = std::min(send_sizes_[number], kMost);
  const int64_t first = std::max({int64_t{0}, -in, -out});
  const int64_t end = std::min({rows, operand_rows - in, output_rows - out});
  send_sizes_[number] = std::max(int64_t{0}, end - first);
  input_offsets_[number] = in + first;
  output_offsets_[number] = out + first;
  dropped_ += rows - send_sizes_[number];
}

// Of entries that no slice has, indices are not looked at.
Status GroupTraffic::CheckIndices(const std::vector<ExchangeArgs>& args) const {
  for (int32_t p = 0; p < devices_; ++p) {
    const int32_t* const indices = args[p].indices;
    for (int64_t u = 0; u < updates_ && indices != nullptr; ++u) {
      const size_t at = Index(site_->rank_of[p], u);
      for (int64_t i = input_offsets_[at]; i < input_offsets_[at] + send_sizes_[at]; ++i) {
        if (indices[i] >= 0 && indices[i] < args[p].indexed_rows) continue;
        return Refuse(p, Entry("indices", i, indices[i]) + " is not one of the " +
                             std::to_string(args[p].indexed_rows) + " rows.");
      }
    }
  }
  return Status::Ok();
}

Status GroupTraffic::CheckPair(int32_t sender, int32_t receiver) const {
  for (int64_t u = 0; u < per_peer_; ++u) {
    const int64_t send_index = receiver * per_peer_ + u;
    const int64_t recv_index = sender * per_peer_ + u;
    const int64_t sent = send_sizes_[Index(site_->rank_of[sender], send_index)];
    const int64_t expected = recv_sizes_[Index(site_->rank_of[receiver], recv_index)];
    if (sent == expected) continue;
    return Status::Invalid(site_->Prefix() + DeviceName(sender) + " sends " + std::to_string(sent) + " rows to " +
                           DeviceName(receiver) + " (send_sizes[" + std::to_string(send_index) + "]), which expects " +
                           std::to_string(expected) + " (recv_sizes[" + std::to_string(recv_index) +
                           "]). recv_sizes must be send_sizes seen from the receivers: "
                           "jax.lax.all_to_all(send_sizes, axis_name, 0, 0, tiled=True).");
  }
  return Status::Ok();
}

Status GroupTraffic::CheckTables(const std::vector<ExchangeArgs>& args, bool transposed_table) const {
  for (int32_t p = 0; p < devices_; ++p) {
    if (args[p].table == nullptr) continue;
    const char* wrong = planner::TableView::Check(args[p].table, args[p].table_words, devices_, site_->rank_of[p]);
    if (*wrong != '\0') {
      return Status::Invalid(site_->Prefix() + "the plan of " + DeviceName(p) + " is not usable: " + wrong +
                             ". Pass what plan_ragged_all_to_all returned on that device for this axis, unchanged.");
    }
  }
  const auto hash_of = [](const ExchangeArgs& device) {
    return device.table == nullptr ? device.plan_hash : planner::TableView(device.table).plan_hash();
  };
  for (int32_t p = 0; p < devices_; ++p) {
    if (hash_of(args[p]) != hash_of(args.front())) {
      return Status::Invalid(site_->Prefix() + DeviceName(p) + " holds another plan than " + DeviceName(0) +
                             ". Pass every device the plan of one plan_ragged_all_to_all call.");
    }
    if (args[p].table == nullptr) continue;
    if (Status status = CheckPlanned(p, args[p].table, transposed_table); !status.ok()) return status;
  }
  return Status::Ok();
}

Status GroupTraffic::CheckPlanned(int32_t position, const int32_t* words, bool transposed_table) const {
  const planner::TableView table(words);
  for (int32_t q = 0; q < devices_; ++q) {
    const int64_t sent = Sent(site_->rank_of[position], site_->rank_of[q]);
    const int64_t planned = transposed_table ? table.receives(site_->rank_of[q]) : table.sends(site_->rank_of[q]);
    if (sent == planned) continue;
    return Status::Invalid(site_->Prefix() + "the plan does not fit: it is for " + std::to_string(planned) +
                           " rows from " + DeviceName(position) + " to " + DeviceName(q) + ", send_sizes has " +
                           std::to_string(sent) +
                           ". Plan with the send_sizes of this exchange, "
                           "and pass plan.transpose() for the way back.");
  }
  return Status::Ok();
}

void GroupTraffic::ListReturned(int32_t target, std::vector<ReturnedSlice>* slices) const {
  slices->clear();
  for (int32_t origin = 0; origin < devices_; ++origin) {
    int64_t done = 0;
    const size_t begin = Index(target, site_->position_at[origin] * per_peer_);
    for (size_t number = begin; number < begin + static_cast<size_t>(per_peer_); ++number) {
      if (send_sizes_[number] > 0) slices->push_back({input_offsets_[number], origin, done, number});
      done += send_sizes_[number];
    }
  }
  std::sort(slices->begin(), slices->end(), [](const ReturnedSlice& a, const ReturnedSlice& b) {
    return std::tie(a.input_offset, a.origin, a.done) < std::tie(b.input_offset, b.origin, b.done);
  });
}

const GroupTraffic::DestinationRange* GroupTraffic::FindOverlap(int32_t target) {
  ranges_.clear();
  for (int32_t origin = 0; origin < devices_; ++origin) {
    ForEachRun(origin, target, 0, rows(origin, target), [&](const Run& run) {
      ranges_.push_back({run.destination_row, run.destination_row + run.rows, origin});
    });
  }
  std::sort(ranges_.begin(), ranges_.end(), [](const DestinationRange& a, const DestinationRange& b) {
    return std::tie(a.first, a.end, a.origin) < std::tie(b.first, b.end, b.origin);
  });
  for (size_t i = 1; i < ranges_.size(); ++i) {
    if (ranges_[i].first < ranges_[i - 1].end) return &ranges_[i];
  }
  return nullptr;
}

bool GroupTraffic::DestinationsOverlap() {
  for (int32_t target = 0; target < devices_; ++target) {
    if (FindOverlap(target) != nullptr) return true;
  }
  return false;
}

Status GroupTraffic::CheckDestinations() {
  for (int32_t target = 0; target < devices_; ++target) {
    const DestinationRange* later = FindOverlap(target);
    if (later != nullptr) return OverlapError(*(later - 1), *later, target);
  }
  return Status::Ok();
}

Status GroupTraffic::OverlapError(const DestinationRange& earlier, const DestinationRange& later,
                                  int32_t target) const {
  const auto name = [&](int32_t rank) { return DeviceName(site_->position_at[rank]); };
  const int64_t last = std::min(earlier.end, later.end) - 1;
  const bool twice = earlier.origin == later.origin;
  const std::string who =
      twice ? name(earlier.origin) + " writes " : name(earlier.origin) + " and " + name(later.origin) + " both write ";
  const std::string rows = last == later.first ? "row " + std::to_string(last)
                                               : "rows " + std::to_string(later.first) + " to " + std::to_string(last);
  return Status::Invalid(site_->Prefix() + who + rows + " of the output of " + name(target) + (twice ? " twice" : "") +
                         ": output_offsets overlap, and which rows stay is not defined. "
                         "Give every slice rows of its own.");
}

}  // namespace fastjax
