// Declares Placement, which says where the rows of a transfer lie in the memory of this process's devices.
#ifndef FASTJAX_EXECUTION_PLACEMENT_H_
#define FASTJAX_EXECUTION_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "exchange/group_traffic.h"
#include "execution/device_plan.h"
#include "planner/transfer.h"
#include "runtime/copy_pool.h"
#include "runtime/staging_pool.h"

namespace fastjax {

// Returns memory for the staging of one device, which stays until the exchange is over; null if there is none.
using StagingMemory = std::function<std::byte*(int32_t rank, int64_t bytes)>;

// Operands, outputs and staging memory of one exchange; reused by later ones. What it is given must outlive its use.
class Placement {
 public:
  // Sets the arguments, by position. No device has staging memory yet, which blocks that go straight to their target do
  // not need.
  void Begin(const CallSite& site, const std::vector<ExchangeArgs>& args, int64_t row_bytes,
             const GroupTraffic& traffic);
  // Takes staging memory for the local devices, from `memory` or from the pool of this process.
  Status TakeStaging(const DevicePlans& plans, const StagingMemory& memory = nullptr);

  // Returns the staging memory to the pool.
  void Release();

  int64_t row_bytes() const { return row_bytes_; }

  // Whether a transfer stays inside blocks and staging memory. It must be checked, since the table comes through the
  // user's program. Staging of other processes' devices is checked by those. The methods
  // below take transfers that have been accepted.
  bool Allows(const planner::Transfer& transfer) const;
  // Returns the error for a plan that is not this exchange's.
  Status WrongPlan() const;

  // Calls visit(CopyOp) for a transfer of which both ends are local.
  template <typename Visit>
  void ForEachCopy(const planner::Transfer& transfer, Visit visit) const;
  // Calls visit(std::byte*, Run) for a transfer from an operand, where a run of it goes.
  template <typename Visit>
  void ForEachRun(const planner::Transfer& transfer, Visit visit) const;
  // Calls visit(const std::byte*, bytes) for a transfer whose src is local. Both ends see the same bytes in the same
  // order, in pieces that may differ.
  template <typename Visit>
  void ForEachSource(const planner::Transfer& transfer, Visit visit) const;
  // Calls visit(std::byte*, bytes) for a transfer whose dst is local.
  template <typename Visit>
  void ForEachDestination(const planner::Transfer& transfer, Visit visit) const;

 private:
  bool InStaging(int32_t rank, int64_t row, int64_t rows) const;
  static bool FromOperand(const planner::Transfer& t) { return t.src_row == planner::Transfer::kInPlace; }
  static bool ToOutput(const planner::Transfer& t) { return t.dst_row == planner::Transfer::kInPlace; }
  // Calls visit(run, done) for each run of a transfer, `done` rows of which come before it; or once for all of it,
  // where its rows lie together in staging memory.
  template <typename Visit>
  void ForEachPiece(const planner::Transfer& transfer, bool whole, Visit visit) const;
  // Returns where the rows of a run come from, or go to.
  const std::byte* Source(const planner::Transfer& t, const Run& run, int64_t done) const {
    return FromOperand(t) ? (*args_)[site_->position_at[t.origin]].source + run.source_row * row_bytes_
                          : staging_at_[t.src] + (t.src_row + done) * row_bytes_;
  }
  std::byte* Destination(const planner::Transfer& t, const Run& run, int64_t done) const {
    return ToOutput(t) ? (*args_)[site_->position_at[t.target]].destination + run.destination_row * row_bytes_
                       : staging_at_[t.dst] + (t.dst_row + done) * row_bytes_;
  }

  const CallSite* site_ = nullptr;
  const std::vector<ExchangeArgs>* args_ = nullptr;
  const GroupTraffic* traffic_ = nullptr;
  int64_t row_bytes_ = 0;
  kernels::Destination output_stores_ = kernels::Destination::kCached;
  StagingPool::Buffer staging_;
  std::vector<int64_t> staging_rows_;   // by rank; -1: not of this process
  std::vector<std::byte*> staging_at_;  // by rank
};

inline bool Placement::InStaging(int32_t rank, int64_t row, int64_t rows) const {
  return row >= 0 && (staging_rows_[rank] < 0 || rows <= staging_rows_[rank] - row);
}

inline bool Placement::Allows(const planner::Transfer& t) const {
  constexpr int64_t kInPlace = planner::Transfer::kInPlace;
  const int64_t block_rows = traffic_->rows(t.origin, t.target);
  return t.rows > 0 && t.first_row >= 0 && t.rows <= block_rows && t.first_row <= block_rows - t.rows &&
         (t.src_row == kInPlace ? t.src == t.origin : InStaging(t.src, t.src_row, t.rows)) &&
         (t.dst_row == kInPlace ? t.dst == t.target : InStaging(t.dst, t.dst_row, t.rows));
}

template <typename Visit>
void Placement::ForEachPiece(const planner::Transfer& t, bool whole, Visit visit) const {
  if (whole) return visit(Run{0, 0, t.rows}, int64_t{0});
  int64_t done = 0;
  traffic_->ForEachRun(t.origin, t.target, t.first_row, t.rows, [&](const Run& run) {
    visit(run, done);
    done += run.rows;
  });
}

template <typename Visit>
void Placement::ForEachCopy(const planner::Transfer& t, Visit visit) const {
  const kernels::Destination use = ToOutput(t) ? output_stores_ : kernels::Destination::kCached;
  ForEachPiece(t, !FromOperand(t) && !ToOutput(t), [&](const Run& run, int64_t done) {
    visit(CopyOp{Destination(t, run, done), Source(t, run, done), run.rows * row_bytes_, use});
  });
}

template <typename Visit>
void Placement::ForEachRun(const planner::Transfer& t, Visit visit) const {
  ForEachPiece(t, false, [&](const Run& run, int64_t done) { visit(Destination(t, run, done), run); });
}

template <typename Visit>
void Placement::ForEachSource(const planner::Transfer& t, Visit visit) const {
  ForEachPiece(t, !FromOperand(t),
               [&](const Run& run, int64_t done) { visit(Source(t, run, done), run.rows * row_bytes_); });
}

template <typename Visit>
void Placement::ForEachDestination(const planner::Transfer& t, Visit visit) const {
  ForEachPiece(t, !ToOutput(t),
               [&](const Run& run, int64_t done) { visit(Destination(t, run, done), run.rows * row_bytes_); });
}

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_PLACEMENT_H_
