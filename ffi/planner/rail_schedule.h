// Declares RailSchedule: which rows each rail carries, and slices of the rails' lists as transfers.
#ifndef FASTJAX_PLANNER_RAIL_SCHEDULE_H_
#define FASTJAX_PLANNER_RAIL_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "planner/pricing.h"
#include "planner/schedule.h"
#include "planner/tiles.h"

namespace fastjax::planner {

// What a stage moves on every rail of a server pair: its units [begin, end).
struct Slice {
  int32_t source;
  int32_t target;
  int64_t begin;
  int64_t end;
};

// What schedules that carry tiles over rails have in common: stages of slices, each of which is balanced, crosses and
// is redistributed.
class RailSchedule : public Schedule {
 public:
  // Several may have tiles in common, which are then planned before any of them is.
  RailSchedule(std::shared_ptr<Tiles> tiles, int64_t row_bytes, bool in_common);

  int64_t block_bound() const final { return tiles_->block_bound(); }
  int64_t StagingRows(int32_t server) const final {
    return topology_.devices_per_server == 1 ? 0 : tiles_->staging_rows(server);
  }
  void Append(const int64_t* traffic, int32_t device, TransferBuffer* out) final;

 protected:
  // What all of them plan first.
  void PlanTiles(const int64_t* traffic);
  // The slices of a stage: all, or those that a server is part of, in the same order.
  virtual void CollectSlices(int32_t stage, int32_t server, std::vector<Slice>* slices) = 0;

  const Topology topology_;
  const Pricing pricing_;
  const std::shared_ptr<Tiles> tiles_;

 private:
  // What is still to be listed of a rail: entries [next, end), of which nothing before `position`. Most lists have
  // nothing in a given stage, and this says so without a look at their segments.
  struct Remaining {
    static constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();

    int32_t next = 0;
    int32_t end = 0;
    int64_t position = kNothing;
  };
  struct Span {
    int64_t begin;
    int64_t end;
  };
  struct Ends {
    int32_t src;
    int32_t dst;
    int64_t src_row;
    int64_t dst_row;
  };

  // Forgets which rows rails carry.
  void Forget();
  // Starts a listing for one device, or for kEveryDevice; then slices of a pair come in order.
  void Prepare(const int64_t* traffic, int32_t device);
  void AppendBalance(const Slice& slice, int32_t stage, TransferBuffer* out);
  void AppendScaleOut(const Slice& slice, int32_t stage, TransferBuffer* out);
  void AppendRedistribute(const Slice& slice, int32_t stage, TransferBuffer* out);
  size_t Slot(int32_t source, int32_t target) const {
    if (dense_) return tiles_->PairOf(source, target);
    return source == server_ ? target : servers_ + source;
  }
  template <typename Visit>
  void ForEachPair(Visit visit);
  void FillTiles(const int64_t* traffic);
  void FillTile(const int64_t* traffic, int32_t source, int32_t target, const Viewer* viewer);
  void PreparePair(int32_t source, int32_t target);
  void ReserveEntries(int32_t segments);
  Remaining Whole(const Rail& rail) const;
  Remaining Hops(const Rail& rail, int32_t end_local, int32_t Segment::* end);
  Span RowsOf(const Slice& slice, int32_t rail) const;
  bool Wanted(int32_t server) const { return device_ == kEveryDevice || server == server_; }
  int32_t FindDue(const Slice& slice, const Remaining* lists, int32_t begin, int32_t end);
  template <typename FindEnds>
  void AppendPieces(const Slice& slice, Phase phase, int32_t stage, int32_t begin, int32_t end,
                    std::vector<Remaining>* all, TransferBuffer* out, FindEnds find_ends);

  const bool in_common_;
  const int32_t servers_;
  const int32_t m_;
  const bool equal_nics_;

  // What is listed.
  int32_t device_ = kEveryDevice;
  int32_t server_ = 0;
  int32_t local_ = 0;
  std::vector<int32_t> due_;  // rails
  std::vector<int64_t> quotas_;

  // Whose tiles are filled: those of a server, or of one of its devices only.
  static constexpr int32_t kNobody = -2;
  int32_t filled_server_ = kNobody;
  int32_t filled_device_ = kNobody;
  bool asked_ = false;  // for any device since Forget

  // By slot: of all pairs where they are few, else of those of one server; and by rail.
  bool dense_;
  std::vector<uint8_t> filled_;
  std::vector<Rail> rails_;
  std::vector<Remaining> balance_;
  std::vector<Remaining> scale_out_;
  std::vector<Remaining> redistribute_;
  std::vector<Segment> segments_;
  int32_t segments_used_ = 0;
  // Segments, to which lists refer: first each in its place, for lists of whole rails, then those that the devices
  // listed balance or redistribute.
  std::vector<int32_t> entries_;
  int32_t all_ = 0;  // entries in their place
  int32_t used_ = 0;
  std::vector<Slice> slices_;  // of a stage
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_RAIL_SCHEDULE_H_
