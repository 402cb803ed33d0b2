// Balance of one server pair: which rail carries which rows, so that every rail carries its quota and the fewest rows
// move inside the two servers.
#ifndef FASTJAX_PLANNER_BALANCE_H_
#define FASTJAX_PLANNER_BALANCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/segments.h"

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

  int32_t Fill(const int64_t* tile, int64_t stride, const int64_t* quotas, Rail* rails, Segment* pool,
               int32_t first) override;
  int32_t FillFor(const Viewer& viewer, const int64_t* tile, int64_t stride, const int64_t* quotas, Rail* rails,
                  Segment* pool, int32_t first) override;

 private:
  void Assign(const int64_t* tile, int64_t stride, const int64_t* quotas);
  template <int32_t kRails>
  void PlaceOnOrigins(const int64_t* tile, int64_t stride, const int64_t* quotas);
  template <bool kOneWord>
  void PushDirectly();
  template <bool kOneWord>
  bool Augment();
  template <bool kOneWord>
  int64_t PushAlong(int32_t from, int32_t to);
  template <bool kOneWord>
  void Move(int32_t from, int32_t to, int64_t rows);
  void SpreadLeftover();
  void TakeLeftover(int32_t origin, int32_t target, int64_t rows, int32_t* rail);
  // Rows of a block, other than a diagonal one, that lie on its two ends.
  int64_t AtOrigin(int32_t block) const { return here_[block] < placed_[block] ? here_[block] : placed_[block]; }
  int64_t AtTarget(int32_t block) const { return placed_[block] - AtOrigin(block); }
  int32_t WriteAll(int32_t rail, Rail* out, Segment* pool, int32_t first) const;
  int32_t WriteSentBy(int32_t origin, int32_t rail, Rail* out, Segment* pool, int32_t first) const;
  int32_t WriteReceivedBy(int32_t target, int32_t rail, Rail* out, Segment* pool, int32_t first) const;
  template <typename Wanted>
  int32_t WritePieces(int32_t rail, Wanted wanted, int64_t* position, Segment* pool, int32_t first) const;
  template <int32_t kRails>
  int32_t WriteRail(int32_t rail, Rail* out, Segment* pool, int32_t first) const;

  int32_t rails_;
  int32_t words_;  // 64-bit words that hold a set of rails
  // Index i * m + j. Rows of the block i -> j that lie on one of its ends; a diagonal block has one end.
  std::vector<int64_t> placed_;
  // Rows on rail i of the two blocks between i and j: those that could move to j. Rows that left their origin return
  // before others leave, so of two opposite blocks one at most has rows on its target, and `here_` says all.
  std::vector<int64_t> here_;
  std::vector<int64_t> surplus_;  // rows of the diagonal block above the quota
  std::vector<int64_t> excess_;   // rows on a rail above its quota; negative: room

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

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_BALANCE_H_
