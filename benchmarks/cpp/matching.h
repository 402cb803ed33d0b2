// Maximum matchings in bipartite graphs, found from nothing each time, in two ways. The graph is a square matrix: an
// edge wherever its entry is above 0.
#ifndef FASTJAX_BENCHMARKS_CPP_MATCHING_H_
#define FASTJAX_BENCHMARKS_CPP_MATCHING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjax::bench {

inline constexpr int32_t kFree = -1;

// Kuhn's augmenting paths, depth first over the rows of the matrix itself, as textbooks have it.
class Kuhn {
 public:
  explicit Kuhn(int32_t size);

  // Solve reads the matrix, row-major size x size, as it is then.
  void Begin(const int64_t* matrix) { matrix_ = matrix; }
  // To be called where an entry has become 0.
  void Exhaust(int32_t row, int32_t column);

  // Finds a largest matching, in O(size^3); returns how many rows it has.
  int32_t Solve();
  int32_t column_of(int32_t row) const { return column_of_[row]; }

 private:
  bool Augment(int32_t row);

  int32_t size_;
  const int64_t* matrix_ = nullptr;
  std::vector<int32_t> column_of_;
  std::vector<int32_t> row_of_;
  std::vector<char> seen_;  // columns that the search from a row has looked at
};

// Hopcroft and Karp's, on arrays of edges that are kept up to date: what an optimised textbook would take. Used like
// Kuhn.
class HopcroftKarp {
 public:
  explicit HopcroftKarp(int32_t size);

  void Begin(const int64_t* matrix);
  void Exhaust(int32_t row, int32_t column);

  // In O(edges * sqrt(size)).
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
