// Balance of one server pair: which rail carries which rows, so that every rail carries its quota and the fewest rows
// move inside the two servers.
#ifndef FASTJAX_PLANNER_BALANCE_H_
#define FASTJAX_PLANNER_BALANCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "planner/rate.h"
#include "planner/segments.h"
#include "planner/tiles.h"
#include "planner/topology.h"

namespace fastjax::planner {

// The order of a rail's list is
//   head      origin == rail != target: need no balance, so they can leave first,
//   two-move  neither end is the rail,
//   diagonal  origin == rail == target,
//   tail      origin != rail == target: need no redistribution, so nothing follows the last stage.
//
// Keeps what it computes with between tiles, so that it does not allocate.
class Balancer final : public RailFiller {
 public:
  explicit Balancer(int32_t rails);

  // Segments that a tile needs of the pool at most: a diagonal block lies on its own rail, any other on its two ends
  // (together m + 2 m (m - 1)); what is left over is laid out in one sweep over blocks and rails, which makes at most
  // m * m + m - 1 pieces; and one is written before it is known to be needed.
  int64_t max_segments() const override { return 3 * int64_t{rails_} * rails_; }

  bool heeds_viewer() const override { return true; }
  int32_t Fill(const int64_t* tile, int64_t stride, const int64_t* quotas, const Viewer* viewer, Rail* rails,
               Segment* pool, int32_t first) override;

 private:
  template <int32_t kRails>
  void Assign(const int64_t* tile, int64_t stride, const int64_t* quotas);
  template <int32_t kRails>
  void PlaceOnOrigins(const int64_t* tile, int64_t stride, const int64_t* quotas);
  template <int32_t kRails>
  int64_t PushToRooms(int32_t from, int64_t most);
  template <int32_t kRails>
  void PushThroughOthers(int32_t from);
  template <int32_t kRails>
  int32_t Widest(int32_t from) const;
  template <int32_t kRails>
  bool FindOver();
  template <int32_t kRails>
  void FindMovable();
  bool CanMove() const;
  template <int32_t kRails>
  bool Augment();
  template <int32_t kRails>
  int64_t PushAlong(int32_t from, int32_t to);
  template <int32_t kRails>
  void Move(int32_t from, int32_t to, int64_t rows);
  template <int32_t kRails>
  void SpreadLeftover();
  void TakeLeftover(int32_t origin, int32_t target, int64_t rows, int32_t* rail);
  // A local index beyond the last goes on from the first.
  template <int32_t kRails>
  int32_t Around(int32_t i) const {
    const int32_t m = kRails == 0 ? rails_ : kRails;
    return i < m ? i : i - m;
  }
  template <int32_t kRails>
  int32_t Write(const int64_t* quotas, const Viewer* viewer, Rail* rails, Segment* pool, int32_t first) const;
  template <int32_t kRails>
  int32_t WriteOthers(const Viewer& viewer, const int64_t* quotas, Rail* rails, Segment* pool, int32_t first) const;
  template <int32_t kRails>
  int32_t WriteSentBy(int32_t rail, int32_t shift, int64_t quota, Segment* pool, int32_t first) const;
  template <int32_t kRails>
  int32_t WriteReceivedBy(int32_t rail, int32_t shift, Segment* pool, int32_t first) const;
  template <typename Wanted>
  int32_t WritePieces(int32_t rail, Wanted wanted, int64_t position, Segment* pool, int32_t first) const;
  template <int32_t kRails>
  int32_t WriteRail(int32_t rail, Rail* out, Segment* pool, int32_t first) const;

  int32_t rails_;
  int32_t words_;  // 64-bit words that hold a set of rails
  // Index i * m + j. Rows of the block i -> j that lie on one of its ends; a diagonal block has one end.
  std::vector<int64_t> placed_;
  // Those of them that lie on their origin, 0 for a diagonal block. The search counts in what lies on rail i of the
  // opposite block as well: all that could move to j. Rows that left their origin return before others leave, so of
  // two opposite blocks one at most has rows on its target, and the smaller of the two numbers is on its origin.
  std::vector<int64_t> here_;
  int64_t surplus_rows_ = 0;      // of all of surplus_
  std::vector<int64_t> surplus_;  // rows of the diagonal block above the quota
  std::vector<int64_t> excess_;   // rows on a rail above its quota
  std::vector<int64_t> space_;    // rows that a rail has below it

  // Sets of rails, as bits: from rail i rows can move to the rails of movable_[i].
  std::vector<uint64_t> movable_;
  std::vector<uint64_t> over_;
  std::vector<uint64_t> room_;
  std::vector<uint64_t> unseen_;
  std::vector<int32_t> parent_;
  std::vector<int32_t> queue_;

  std::vector<Segment> pieces_;       // leftover, ordered by rail
  std::vector<int32_t> first_piece_;  // per rail, and the end
};

// Tiles whose rows are balanced over the rails; several schedulers may have them in common.
std::shared_ptr<Tiles> MakeBalancedTiles(const Topology& topology);

// The planning time of the sums of all tiles, without the rail assignment, which only tables need.
Picoseconds BalancedTilesTime(const Topology& topology);

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_BALANCE_H_
