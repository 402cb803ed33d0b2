#include "matching.h"

#include <algorithm>

namespace fastjax::bench {

Kuhn::Kuhn(int32_t size) : size_(size), column_of_(size), row_of_(size), seen_(size) {}

// Solve looks at the entry itself.
void Kuhn::Exhaust(int32_t, int32_t) {}

int32_t Kuhn::Solve() {
  std::fill(column_of_.begin(), column_of_.end(), kFree);
  std::fill(row_of_.begin(), row_of_.end(), kFree);
  int32_t matched = 0;
  for (int32_t row = 0; row < size_; ++row) {
    std::fill(seen_.begin(), seen_.end(), 0);
    if (Augment(row)) ++matched;
  }
  return matched;
}

bool Kuhn::Augment(int32_t row) {
  const int64_t* entries = matrix_ + static_cast<size_t>(row) * size_;
  for (int32_t column = 0; column < size_; ++column) {
    if (entries[column] == 0 || seen_[column]) continue;
    seen_[column] = 1;
    if (row_of_[column] != kFree && !Augment(row_of_[column])) continue;
    column_of_[row] = column;
    row_of_[column] = row;
    return true;
  }
  return false;
}

HopcroftKarp::HopcroftKarp(int32_t size)
    : size_(size),
      edges_(static_cast<size_t>(size) * size),
      degree_(size),
      column_of_(size),
      row_of_(size),
      layer_(size),
      next_(size),
      queue_(size) {}

void HopcroftKarp::Begin(const int64_t* matrix) {
  std::fill(degree_.begin(), degree_.end(), 0);
  for (int32_t row = 0; row < size_; ++row) {
    for (int32_t column = 0; column < size_; ++column) {
      if (matrix[Slot(row, column)] > 0) edges_[Slot(row, degree_[row]++)] = column;
    }
  }
}

void HopcroftKarp::Exhaust(int32_t row, int32_t column) {
  int32_t* first = &edges_[Slot(row, 0)];
  int32_t* edge = std::find(first, first + degree_[row], column);
  *edge = first[--degree_[row]];
}

int32_t HopcroftKarp::Solve() {
  std::fill(column_of_.begin(), column_of_.end(), kFree);
  std::fill(row_of_.begin(), row_of_.end(), kFree);
  int32_t matched = 0;
  while (FindLayers()) {
    std::fill(next_.begin(), next_.end(), 0);
    for (int32_t row = 0; row < size_; ++row) {
      if (column_of_[row] == kFree && Augment(row)) ++matched;
    }
  }
  return matched;
}

// Breadth first from all free rows; says whether a free column was reached.
bool HopcroftKarp::FindLayers() {
  int32_t queued = 0;
  for (int32_t row = 0; row < size_; ++row) {
    const bool is_free = column_of_[row] == kFree;
    layer_[row] = is_free ? 0 : kFree;
    if (is_free) queue_[queued++] = row;
  }
  bool found = false;
  for (int32_t i = 0; i < queued; ++i) {
    const int32_t row = queue_[i];
    const int32_t* edge = &edges_[Slot(row, 0)];
    for (const int32_t* end = edge + degree_[row]; edge != end; ++edge) {
      const int32_t other = row_of_[*edge];
      if (other == kFree) {
        found = true;
      } else if (layer_[other] == kFree) {
        layer_[other] = layer_[row] + 1;
        queue_[queued++] = other;
      }
    }
  }
  return found;
}

// Depth first along the layers; an edge is looked at once in a phase.
bool HopcroftKarp::Augment(int32_t row) {
  while (next_[row] < degree_[row]) {
    const int32_t column = edges_[Slot(row, next_[row]++)];
    const int32_t other = row_of_[column];
    if (other != kFree && (layer_[other] != layer_[row] + 1 || !Augment(other))) continue;
    column_of_[row] = column;
    row_of_[column] = row;
    return true;
  }
  return false;
}

}  // namespace fastjax::bench
