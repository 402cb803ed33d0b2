// Declares GroupTraffic: the checked offsets and sizes of a whole group, and where they put every row.
#ifndef FASTJAX_EXCHANGE_GROUP_TRAFFIC_H_
#define FASTJAX_EXCHANGE_GROUP_TRAFFIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "exchange/call_site.h"
#include "exchange/operation.h"
#include "exchange/status.h"

namespace fastjax {

// A run of rows that lie together at both ends.
struct Run {
  int64_t source_row;
  int64_t destination_row;
  int64_t rows;
};

// A slice that comes back to the device that sent it.
struct ReturnedSlice {
  int64_t input_offset;
  int32_t origin;  // the rank that it comes back from
  int64_t done;    // rows of its block that come before it
  size_t number;
};

// All of it in ranks. Reused from exchange to exchange without allocating.
class GroupTraffic {
 public:
  // Copies everyone's metadata (`args` by position) and checks it: sizes and offsets in range, send and receive
  // sizes that agree. With `drop`, rows out of range are taken out of their slices instead, so that plans, copies and
  // statistics know only of those that are left.
  Status Load(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args, bool reverse,
              bool drop = false);

  // Checks that the tables are of one plan, and that this plan is for these sizes. Of devices of other processes only
  // the plan's hash is known.
  Status CheckTables(const std::vector<ExchangeArgs>& args, bool transposed_table) const;

  // Checks the indices of the devices of this process; those of others are not known here.
  Status CheckIndices(const std::vector<ExchangeArgs>& args) const;

  // That, on this device, something is wrong.
  Status Refuse(int32_t position, const std::string& what) const;

  // Rows that each rank sends to each, by the metadata; in reverse, what comes back.
  const int64_t* sent() const { return sent_.data(); }

  // Rows that were out of range, of all slices.
  int64_t dropped() const { return dropped_; }

  // Rows that move from rank `origin` to rank `target`.
  int64_t rows(int32_t origin, int32_t target) const { return reverse_ ? Sent(target, origin) : Sent(origin, target); }

  // Calls visit(Run) for rows [first, first + rows) of block (origin -> target), which must be inside it.
  template <typename Visit>
  void ForEachRun(int32_t origin, int32_t target, int64_t first, int64_t rows, Visit visit) const;

  // In reverse, lists the slices with rows that come back to rank `target`, in the order in which they are to be
  // summed: by input offset, whichever device they come back from; of one offset by rank. The result then depends
  // neither on what came first nor on where a row was in between.
  void ListReturned(int32_t target, std::vector<ReturnedSlice>* slices) const;
  // Calls visit(origin, run, done) for all runs of these slices. `done` rows of the run's block come before it.
  template <typename Visit>
  void ForEachReturned(int32_t target, const std::vector<ReturnedSlice>& slices, Visit visit) const;

  // Whether rows of different runs land on each other on some device.
  bool DestinationsOverlap();
  // Returns an error that says which rows land on each other, if any do.
  Status CheckDestinations();

 private:
  struct DestinationRange {
    int64_t first;
    int64_t end;
    int32_t origin;
  };

  // The later of two ranges on a device of which it is one, the other right before it; null where none overlap.
  const DestinationRange* FindOverlap(int32_t target);
  Status OverlapError(const DestinationRange& earlier, const DestinationRange& later, int32_t target) const;
  // The runs of `rows` rows of a slice of `sender`, from row `skip` of it on.
  template <typename Visit>
  void ForEachRunOf(int32_t sender, size_t number, int64_t skip, int64_t rows, Visit visit) const;
  int64_t Sent(int32_t from, int32_t to) const { return sent_[static_cast<size_t>(from) * devices_ + to]; }
  std::string DeviceName(int32_t position) const { return site_->DeviceName(group_, position); }
  Status CheckDevice(int32_t position, int64_t operand_rows, int64_t output_rows) const;
  // Leaves the rows of a slice that lie in both arrays.
  void Clip(size_t number, int64_t operand_rows, int64_t output_rows);
  Status CheckPlanned(int32_t position, const int32_t* words, bool transposed_table) const;
  Status CheckPair(int32_t sender, int32_t receiver) const;
  size_t Index(int32_t rank, int64_t update) const {
    return static_cast<size_t>(rank) * static_cast<size_t>(updates_) + static_cast<size_t>(update);
  }

  bool reverse_ = false;
  bool drop_ = false;
  int64_t dropped_ = 0;
  int32_t devices_ = 0;
  int64_t updates_ = 0;   // entries a device
  int64_t per_peer_ = 0;  // of them, for one peer
  const CallSite* site_ = nullptr;
  int32_t group_ = 0;
  std::vector<int64_t> input_offsets_;  // rank-major; entries in order of position
  std::vector<int64_t> send_sizes_;
  std::vector<int64_t> output_offsets_;
  std::vector<int64_t> recv_sizes_;
  std::vector<int64_t> sent_;             // rank x rank
  std::vector<const int32_t*> indices_;   // by rank; null where there are none, or in another process
  std::vector<DestinationRange> ranges_;  // on one device, in order
};

template <typename Visit>
void GroupTraffic::ForEachRun(int32_t origin, int32_t target, int64_t first, int64_t rows, Visit visit) const {
  const int32_t sender = reverse_ ? target : origin;
  const int32_t receiver = reverse_ ? origin : target;
  const int64_t begin = site_->position_at[receiver] * per_peer_;
  int64_t before = 0;
  for (int64_t u = begin; u < begin + per_peer_ && rows > 0; ++u) {
    const size_t at = Index(sender, u);
    const int64_t size = send_sizes_[at];
    const int64_t skip = first - before;
    before += size;
    if (skip >= size) continue;
    const int64_t take = size - skip < rows ? size - skip : rows;
    ForEachRunOf(sender, at, skip, take, visit);
    first += take;
    rows -= take;
  }
}

template <typename Visit>
void GroupTraffic::ForEachReturned(int32_t target, const std::vector<ReturnedSlice>& slices, Visit visit) const {
  for (const ReturnedSlice& slice : slices) {
    int64_t done = slice.done;
    ForEachRunOf(target, slice.number, 0, send_sizes_[slice.number], [&](const Run& run) {
      visit(slice.origin, run, done);
      done += run.rows;
    });
  }
}

template <typename Visit>
void GroupTraffic::ForEachRunOf(int32_t sender, size_t number, int64_t skip, int64_t rows, Visit visit) const {
  const int64_t in = input_offsets_[number] + skip;
  const int64_t out = output_offsets_[number] + skip;
  const int32_t* const indices = indices_[static_cast<size_t>(sender)];
  if (indices == nullptr) {
    visit(reverse_ ? Run{out, in, rows} : Run{in, out, rows});
    return;
  }
  for (int64_t i = 0, run; i < rows; i += run) {
    for (run = 1; i + run < rows && indices[in + i + run] == indices[in + i] + run;) ++run;
    visit(reverse_ ? Run{out + i, indices[in + i], run} : Run{indices[in + i], out + i, run});
  }
}

}  // namespace fastjax

#endif  // FASTJAX_EXCHANGE_GROUP_TRAFFIC_H_
