// From matchings to stages: in which order, and cut how finely, so that work inside servers hides behind scale-out.
#ifndef FASTJAX_PLANNER_STAGES_H_
#define FASTJAX_PLANNER_STAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/matchings.h"
#include "planner/pricing.h"
#include "planner/tiles.h"

namespace fastjax::planner {

// Stages that cutting adds for either kind of work inside servers, at most.
inline constexpr int32_t kMaxCuts = 16;

// Stages of any plan at most.
int64_t MaxStages(int32_t servers);

class StageBuilder {
 public:
  // Both must stay.
  StageBuilder(const Tiles& tiles, const Pricing& pricing);

  // Of the tiles' last plan, which the matchings cover.
  void Build(const MatchingList& matchings);

  int32_t count() const { return static_cast<int32_t>(lengths_.size()); }
  // Server that `server` sends to, or receives from, in a stage.
  int32_t to(int32_t stage, int32_t server) const { return to_[static_cast<size_t>(stage) * servers_ + server]; }
  int32_t from(int32_t stage, int32_t server) const { return from_[static_cast<size_t>(stage) * servers_ + server]; }
  // Units that a pair moves in the stage, as long as it has any.
  int64_t length(int32_t stage) const { return lengths_[stage]; }
  // The first of them, of a server that sends.
  int64_t begin(int32_t stage, int32_t server) const { return begins_[static_cast<size_t>(stage) * servers_ + server]; }

  // By the cost model.
  Picoseconds PredictedTime();

 private:
  struct Piece {
    int32_t matching;
    int64_t units;
  };
  // Times of the fabric inside a server.
  struct Inside {
    Picoseconds balanced = 0;  // when all balance so far is done
    Picoseconds drained = 0;   // when all redistribution so far is
    Picoseconds work = 0;      // both together
  };

  void Order(const MatchingList& matchings);
  void Cut(TileWork TileLoad::* work, const MatchingList& matchings);
  int64_t PieceLimit(TileWork TileLoad::* work, const int16_t* to, int64_t rows, int64_t left) const;
  void EmitStage(const int16_t* matching, int64_t length);
  Picoseconds TimeOf(TileWork TileLoad::* work, int32_t pair, int64_t length) const;

  const Tiles& tiles_;
  const Pricing& pricing_;
  int32_t servers_;
  int64_t total_units_ = 0;  // of all matchings
  std::vector<int32_t> by_weight_;
  std::vector<Piece> pieces_;  // in order
  std::vector<Piece> cut_;
  std::vector<int64_t> done_;   // by pair: units that stages looked at so far have moved
  std::vector<Inside> inside_;  // by server

  std::vector<int16_t> to_;
  std::vector<int16_t> from_;
  std::vector<int64_t> lengths_;
  std::vector<int64_t> begins_;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_STAGES_H_
