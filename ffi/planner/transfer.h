// What a plan is made of.
#ifndef FASTJAX_PLANNER_TRANSFER_H_
#define FASTJAX_PLANNER_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjax::planner {

enum class Phase : int8_t {
  kLocal = 0,         // straight to the target inside a server; also rows that stay on their device
  kBalance = 1,       // to the device of the same server whose rail will carry the rows
  kScaleOut = 2,      // between servers
  kRedistribute = 3,  // from the rail's receiver to the target inside a server
};

// Rows [first_row, first_row + rows) of block (origin -> target) move from src to dst. `stage` is the scale-out
// stage that a balance transfer feeds, that a scale-out transfer is part of, or that a redistribution drains;
// -1 for local. src_row and dst_row say where the rows lie in the staging buffer of src and dst; kInPlace
// means the origin's operand (src) or the target's output (dst).
struct Transfer {
  static constexpr int64_t kInPlace = -1;

  Phase phase;
  int32_t stage;
  int32_t src;
  int32_t dst;
  int32_t origin;
  int32_t target;
  int64_t first_row;
  int64_t rows;
  int64_t src_row;
  int64_t dst_row;
};

template <typename T>
struct Range {
  const T* first = nullptr;
  const T* last = nullptr;

  const T* begin() const { return first; }
  const T* end() const { return last; }
  int64_t size() const { return last - first; }
};
using TransferRange = Range<Transfer>;

// Transfers in memory that is kept from plan to plan.
class TransferBuffer {
 public:
  TransferBuffer() = default;
  TransferBuffer(const TransferBuffer&) = delete;
  TransferBuffer& operator=(const TransferBuffer&) = delete;
  void Clear() { next_ = memory_.data(); }
  // Where the next transfer goes, with room for `count`.
  Transfer* Reserve(int64_t count) {
    if (memory_.data() + memory_.size() - next_ < count) Grow(count);
    return next_;
  }
  // Keeps what was written at Reserve's answer up to `end`.
  void Commit(Transfer* end) { next_ = end; }
  void Push(const Transfer& transfer) {
    Transfer* next = Reserve(1);
    *next = transfer;
    Commit(next + 1);
  }
  TransferRange range() const { return {memory_.data(), next_}; }

 private:
  // Rarely called: not worth making every caller longer.
  [[gnu::noinline]] void Grow(int64_t count) {
    const int64_t size = next_ - memory_.data();
    memory_.resize(2 * static_cast<size_t>(size + count));
    next_ = memory_.data() + size;
  }

  std::vector<Transfer> memory_;
  Transfer* next_ = nullptr;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_TRANSFER_H_
