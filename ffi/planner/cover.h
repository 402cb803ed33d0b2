// The greedy end of a decomposition: entries go out whole, the largest first, each in the first stage that both its
// servers are free in. In the words of textbooks, a greedy edge colouring of a bipartite graph, or first fit decreasing
// for the open shop: fewer stages than a perfect decomposition, each as long as its largest entry.
#ifndef FASTJAX_PLANNER_COVER_H_
#define FASTJAX_PLANNER_COVER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjax::planner {

// In place of the server that another sends to, or receives from, in a stage.
inline constexpr int16_t kIdle = -1;

// Matchings with weights: weight w moves up to w units of each of its pairs.
struct MatchingList {
  int32_t servers = 0;
  std::vector<int16_t> to;  // `servers` entries for each matching; kIdle sends nothing
  std::vector<int64_t> weights;

  int32_t count() const { return static_cast<int32_t>(weights.size()); }
  const int16_t* matching(int32_t i) const { return &to[static_cast<size_t>(i) * servers]; }
  void Clear() {
    to.clear();
    weights.clear();
  }
};

class GreedyCover {
 public:
  explicit GreedyCover(int32_t servers);

  // An entry is kept out of a stage by one in its row or column, so there are 2 n - 3 stages at most.
  static int64_t MaxStages(int32_t servers) { return servers < 2 ? 0 : 2 * int64_t{servers} - 3; }

  // left[s * n + d]: not negative, zero on the diagonal.
  void Build(const int32_t* left);
  // Does the same in shifted pairs, s -> s + k.
  void BuildShifts(const int32_t* left);

  // Stages, and how long each is.
  const MatchingList& stages() const { return stages_; }
  int64_t total_length() const { return total_; }

 private:
  struct Entry {
    int32_t rows;
    int16_t row;
    int16_t column;
  };

  void Clear();
  void Collect(const int32_t* left);
  void Sort();
  static void SortBy(int shift, int digit_bits, const std::vector<Entry>& from, std::vector<Entry>* to);
  void Place(const Entry& entry);
  int32_t NextFree(const Entry& entry, int32_t word);
  void AddStage(int32_t rows);

  int32_t servers_;
  int32_t words_;  // 64-bit words that hold a set of stages
  std::vector<Entry> entries_;
  std::vector<Entry> sorted_;
  int32_t largest_ = 0;
  std::vector<uint64_t> row_busy_;  // stages that a server sends in
  std::vector<uint64_t> column_busy_;
  std::vector<int32_t> row_first_;  // word of row_busy_ before which all are full
  std::vector<int32_t> column_first_;
  MatchingList stages_;
  int64_t total_ = 0;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_COVER_H_
