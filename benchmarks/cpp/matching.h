// Hopcroft and Karp's maximum matching in a bipartite graph, from nothing each time.
#ifndef FASTJAX_BENCHMARKS_CPP_MATCHING_H_
#define FASTJAX_BENCHMARKS_CPP_MATCHING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjax::bench {

// As many rows as columns. Edges are arrays, one for each row; memory is taken once.
class Matching {
 public:
  static constexpr int32_t kFree = -1;

  explicit Matching(int32_t size);

  void ClearEdges();
  void AddEdge(int32_t row, int32_t column) { edges_[Slot(row, degree_[row]++)] = column; }
  void RemoveEdge(int32_t row, int32_t column);

  // Finds a largest matching, in O(edges * sqrt(size)); returns how many rows it has.
  int32_t Solve();
  int32_t column_of(int32_t row) const { return column_of_[row]; }

 private:
  size_t Slot(int32_t row, int32_t i) const { return static_cast<size_t>(row) * size_ + i; }
  bool FindLayers();
  bool Augment(int32_t row);

  int32_t size_;
  std::vector<int32_t> edges_;
  std::vector<int32_t> degree_;
  std::vector<int32_t> column_of_;
  std::vector<int32_t> row_of_;
  std::vector<int32_t> layer_;  // of each row; kFree where this phase has not reached it
  std::vector<int32_t> next_;   // edge of each row that the search of this phase looks at next
  std::vector<int32_t> queue_;
};

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_MATCHING_H_
