// Splits what servers send to each other into one-to-one stages (Birkhoff), few of them and as short as can be.
#ifndef FASTJAX_PLANNER_STAGES_H_
#define FASTJAX_PLANNER_STAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/topology.h"

namespace fastjax::planner {

// Extra stages that cutting long ones may add to a plan, and pieces of one stage, at most.
inline constexpr int32_t kMaxExtraStages = 32;
inline constexpr int32_t kMaxChunksPerStage = 16;

// Matchings after which the rest goes out in shifted pairs. Every matching uses up one entry of the padded matrix at
// least, and lowers the dimension of the face of the Birkhoff polytope it lies in, so n * n - 2 n + 2 always suffice:
// up to 9 servers no plan is ever cut short.
int64_t MaxMatchings(int32_t servers);

// Stages of any plan at most: matchings, the shifted pairs behind them, chunks.
int64_t MaxStages(int32_t servers);

// Rows a chunk should have when `total_rows` leave the busiest NIC; stages.cc has the rule.
int64_t ChunkRows(const Topology& topology, int64_t row_bytes, int64_t total_rows);

class StageBuilder {
 public:
  static constexpr int32_t kIdle = -1;

  explicit StageBuilder(int32_t servers);

  // rows[s * servers + d]: rows that each rail carries from s to d; the diagonal is zero.
  void Build(const int64_t* rows, const Topology& topology, int64_t row_bytes);

  int32_t count() const { return static_cast<int32_t>(lengths_.size()); }
  // Server that `server` sends to, or receives from, in a stage.
  int32_t to(int32_t stage, int32_t server) const { return to_[static_cast<size_t>(stage) * servers_ + server]; }
  int32_t from(int32_t stage, int32_t server) const { return from_[static_cast<size_t>(stage) * servers_ + server]; }
  // Rows a pair moves in the stage, as long as it has any.
  int64_t length(int32_t stage) const { return lengths_[stage]; }
  int64_t total_rows() const { return total_; }

 private:
  void Pad(const int64_t* rows);
  int64_t Decompose();
  void SetThreshold();
  void LowerThreshold();
  void Augment(int32_t root);
  void Flip(int16_t column);
  int64_t Peel();
  void SubtractMatchings(const int64_t* rows);
  void AppendShifts(const int64_t* rows);
  void Emit(const int64_t* rows, const Topology& topology, int64_t row_bytes);
  bool EmitStage(const int16_t* matching, int64_t length);

  uint64_t* usable(int32_t row) { return &usable_[static_cast<size_t>(row) * words_]; }

  int32_t servers_;
  int32_t words_;  // 64-bit words that hold a set of servers
  int64_t total_ = 0;
  int64_t threshold_ = 0;

  std::vector<int64_t> row_room_;
  std::vector<int64_t> column_room_;
  std::vector<int64_t> left_;     // padded matrix, less what is matched
  std::vector<uint64_t> usable_;  // per row, columns known to have an entry that reaches the threshold
  std::vector<uint64_t> all_;
  std::vector<uint64_t> free_;    // columns without a row
  std::vector<uint64_t> unseen_;  // columns that the current search has not reached
  std::vector<int16_t> row_to_;   // the matching, both ways
  std::vector<int16_t> column_from_;
  std::vector<int16_t> via_;    // row by which the search reached a column
  std::vector<int16_t> queue_;  // rows that the search has reached
  int32_t queued_ = 0;

  std::vector<int16_t> peeled_;  // matchings in the order found, `servers` entries each
  std::vector<int64_t> weights_;

  std::vector<int16_t> to_;
  std::vector<int16_t> from_;
  std::vector<int64_t> lengths_;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_STAGES_H_
