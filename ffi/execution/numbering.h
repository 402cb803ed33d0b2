// Declares Numbering, which numbers values by their order.
#ifndef FASTJAX_EXECUTION_NUMBERING_H_
#define FASTJAX_EXECUTION_NUMBERING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjax {

// Gives numbers, in order, to those values that are in use: what a plan says of how many there are must not decide how
// much memory is taken.
class Numbering {
 public:
  void Clear();
  void Add(int32_t value);
  // To be called after all values have been added.
  void Number();
  // Returns the number of a value that has been added.
  int32_t NumberOf(int32_t value) const;
  const std::vector<int32_t>& values() const { return values_; }
  int32_t count() const { return static_cast<int32_t>(values_.size()); }

 private:
  // A slot of a table that is indexed by the low bits of a value: it holds the value that was added last, with its
  // number later. Plans rarely have so many values that two share a slot.
  struct Known {
    int32_t value = 0;
    int32_t number = 0;
    uint64_t use = 0;  // that it is of: what is left from earlier ones does not count
  };
  static constexpr size_t kPlaces = 1024;
  static size_t PlaceOf(int32_t value) { return static_cast<uint32_t>(value) % kPlaces; }

  uint64_t use_ = 1;  // Each Clear begins one.
  std::vector<int32_t> values_;
  std::array<Known, kPlaces> known_;
};

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_NUMBERING_H_
