#include "indexed_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/gathers.h"
#include "kernels/indexed_sums.h"
#include "kernels/sum.h"
#include "support/check.h"
#include "support/gpu_driver/lists.h"

namespace fastjax::test {
namespace {

using gpu_support::Below;
using gpu_support::Device;
using gpu_support::DeviceList;
using gpu_support::Memory;
using gpu_support::Random;
using gpu_support::RandomBytes;
using kernels::ElementKind;
using kernels::Gather;
using kernels::IndexedSum;
using kernels::Slice;
using kernels::SumTypes;

// Those around what the kernels cut at.
int64_t RandomRow(Random* random) {
  constexpr int64_t kCuts[] = {1, 16, 128, kernels::kWarpRowBytes, kernels::kSmallTileBytes, 3 * kernels::kTileBytes};
  const int64_t cut = kCuts[Below(random, std::size(kCuts))];
  return Below(random, 2) == 0 ? cut : std::max<int64_t>(1, cut + Below(random, 33) - 16);
}

int32_t RandomBlocks(const Device& device, Random* random) {
  return 1 + static_cast<int32_t>(Below(random, 2 * int64_t{device.max_blocks()}));
}

// Every index is of a row, but for some that lead out of the array on either side.
std::vector<int32_t> RandomIndices(int64_t count, int64_t rows, Random* random) {
  constexpr int64_t kFar = int64_t{1} << 31;
  std::vector<int32_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t bad[] = {-1, rows, -kFar, kFar - 1};
    indices.push_back(static_cast<int32_t>(Below(random, 8) == 0 ? bad[Below(random, 4)] : Below(random, rows)));
  }
  return indices;
}

void CheckGathers(const Device& device, Random* random) {
  const int64_t row_bytes = RandomRow(random);
  const int64_t rows = 1 + Below(random, 9);
  const int64_t count = 1 + Below(random, 12);
  const int64_t src_phase = Below(random, 2) == 0 ? 0 : Below(random, 16);
  const std::vector<std::byte> from = RandomBytes(static_cast<size_t>(src_phase + rows * row_bytes), random);
  const Memory src(&device, from.size());
  src.Fill(from);
  const std::vector<int32_t> indices = RandomIndices(40, rows, random);
  const DeviceList there(&device, indices);
  // Gathers that land behind each other, some with bytes of nobody between them.
  std::vector<Gather> gathers;
  std::vector<int64_t> first_index;
  int64_t at = Below(random, 40);
  int64_t end = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t taken = 1 + Below(random, 20);
    first_index.push_back(Below(random, 40 - taken + 1));
    gathers.push_back({reinterpret_cast<std::byte*>(at), src.data() + src_phase, there.data() + first_index.back(),
                       rows, 0, taken * row_bytes});
    at += taken * row_bytes + (Below(random, 2) == 0 ? 0 : Below(random, 40));
  }
  const std::vector<std::byte> before = RandomBytes(static_cast<size_t>(at + 40), random);
  std::vector<std::byte> expected = before;
  const Memory dst(&device, before.size());
  dst.Fill(before);
  for (size_t i = 0; i < gathers.size(); ++i) {
    Gather& gather = gathers[i];
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(gather.dst));
    gather.dst = dst.data() + offset;
    gather.begin = kernels::NextBegin(end, gather.dst);
    end = gather.begin + gather.bytes;
    for (int64_t row = 0; row * row_bytes < gather.bytes; ++row) {
      const int64_t index = indices[static_cast<size_t>(first_index[i] + row)];
      std::byte* const to = expected.data() + offset + row * row_bytes;
      std::fill_n(to, row_bytes, std::byte{0});
      if (index >= 0 && index < rows) std::copy_n(from.begin() + src_phase + index * row_bytes, row_bytes, to);
    }
  }
  const DeviceList list(&device, gathers);
  const Context context(std::to_string(count) + " gathers of rows of " + std::to_string(row_bytes) + " bytes");
  const int32_t blocks = RandomBlocks(device, random);
  device.Must(device.driver().GatherRows(list.data(), count, end, row_bytes, blocks, device.stream()), "gather rows");
  device.Wait();
  CHECK(dst.Read() == expected);
  CHECK(src.Read() == from);
}

// Equal but for NaNs, whose sign and payload are the processor's: those are made alike.
template <typename Bits>
void UnifyNaNs(std::vector<std::byte>* memory, int64_t at, Bits infinity) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  const auto nan = static_cast<Bits>(~kSign);
  for (size_t i = static_cast<size_t>(at); i + sizeof(Bits) <= memory->size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, memory->data() + i, sizeof(Bits));
    if (static_cast<Bits>(bits & nan) > infinity) std::memcpy(memory->data() + i, &nan, sizeof(Bits));
  }
}

std::vector<std::byte> UnifiedNaNs(ElementKind kind, std::vector<std::byte> memory, int64_t at) {
  if (kind == ElementKind::kF16) UnifyNaNs<uint16_t>(&memory, at, 0x7C00);
  if (kind == ElementKind::kBF16) UnifyNaNs<uint16_t>(&memory, at, 0x7F80);
  if (kind == ElementKind::kF32) UnifyNaNs<uint32_t>(&memory, at, 0x7F800000U);
  if (kind == ElementKind::kF64) UnifyNaNs<uint64_t>(&memory, at, uint64_t{0x7FF0000000000000});
  return memory;
}

// A third of them have random bits, so that they may be of any size, infinite or no number.
std::vector<std::byte> RandomElements(ElementKind kind, int64_t count, Random* random) {
  std::vector<std::byte> elements;
  const auto append = [&](auto value) {
    const size_t at = elements.size();
    elements.resize(at + sizeof(value));
    std::memcpy(elements.data() + at, &value, sizeof(value));
  };
  for (int64_t i = 0; i < count; ++i) {
    if (Below(random, 3) == 0) {
      const std::vector<std::byte> bits = RandomBytes(kernels::ElementBytes(kind), random);
      elements.insert(elements.end(), bits.begin(), bits.end());
      continue;
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double odd[] = {kInfinity, -kInfinity, std::nan("")};
    const double finite = static_cast<double>(Below(random, 2'000'001) - 1'000'000) / 7;
    const double number = Below(random, 100) == 0 ? odd[Below(random, 3)] : finite;
    if (kind == ElementKind::kF32) append(static_cast<float>(number));
    if (kind == ElementKind::kF64) append(number);
    if (kind == ElementKind::kBF16) append(kernels::ToBF16(static_cast<float>(number)));
    if (kind == ElementKind::kF16) append(kernels::ToF16(static_cast<float>(number / 10'000)));
  }
  return elements;
}

// Entries of rows in lists, in slices with holes between them, and what must come of it.
class SumTrial {
 public:
  SumTrial(const Device* device, SumTypes types, bool factors, Random* random)
      : device_(*device),
        types_(types),
        element_bytes_(static_cast<int64_t>(kernels::ElementBytes(types.element))),
        sum_bytes_(static_cast<int64_t>(kernels::ElementBytes(types.sum))),
        elements_(std::max<int64_t>(1, RandomRow(random) / element_bytes_)),
        rows_(1 + Below(random, 20)),
        factors_(factors) {
    ListEntries(random);
    ReturnRows(random);
  }

  void Check(Random* random) {
    const int64_t phase = Below(random, 2) == 0 ? 0 : Below(random, 16);
    const int64_t bytes = rows_ * elements_ * sum_bytes_;
    const std::vector<std::byte> before = RandomBytes(static_cast<size_t>(phase + bytes + 40), random);
    const Memory result(&device_, before.size());
    result.Fill(before);
    const Memory source(&device_, returned_.size());
    source.Fill(returned_);
    const Memory factors(&device_, factor_.size());
    if (!factor_.empty()) factors.Fill(factor_);
    std::vector<Slice> slices = slices_;
    for (Slice& slice : slices) {
      slice.row = source.data() + reinterpret_cast<uintptr_t>(slice.row);
      slice.factor = factors_ ? factors.data() + reinterpret_cast<uintptr_t>(slice.factor) : nullptr;
    }
    const DeviceList slices_there(&device_, slices);
    const DeviceList starts_there(&device_, starts_);
    const DeviceList entries_there(&device_, entries_);
    IndexedSum sum = {result.data() + phase,
                      rows_,
                      elements_,
                      starts_there.data(),
                      entries_there.data(),
                      static_cast<int32_t>(entries_.size()),
                      slices_there.data(),
                      static_cast<int64_t>(slices.size()),
                      false};
    sum.aligned = kernels::IsAligned(sum, slices.data(), types_);
    const int32_t blocks = RandomBlocks(device_, random);
    device_.Must(device_.driver().SumIndexed(types_, &sum, blocks, device_.stream()), "sum by indices");
    device_.Wait();
    CHECK(UnifiedNaNs(types_.sum, result.Read(), phase) == UnifiedNaNs(types_.sum, Expected(before, phase), phase));
  }

 private:
  // Each row has some entries; lists may lead beyond their end, and to entries that nobody has.
  void ListEntries(Random* random) {
    starts_.push_back(Below(random, 8) == 0 ? -3 : 0);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t count = Below(random, 11);
      for (int64_t i = 0; i < count; ++i) entries_.push_back(static_cast<int32_t>(Below(random, kEntries)));
      starts_.push_back(static_cast<int32_t>(entries_.size()));
    }
    entries_.push_back(-1);
    entries_.push_back(2'000'000'000);
    starts_.back() += static_cast<int32_t>(Below(random, 9));
  }

  void ReturnRows(Random* random) {
    int64_t at = Below(random, 2) == 0 ? 0 : Below(random, 16);
    int64_t factor_at = at;
    for (int64_t entry = Below(random, 4); entry < kEntries;) {
      const int64_t count = std::min<int64_t>(1 + Below(random, 9), kEntries - entry);
      slices_.push_back(
          {entry, count, reinterpret_cast<const std::byte*>(at), reinterpret_cast<const std::byte*>(factor_at)});
      at += count * elements_ * element_bytes_ + (Below(random, 2) == 0 ? 0 : Below(random, 16));
      factor_at += count * sum_bytes_;
      entry += count + Below(random, 4);
    }
    const auto fill = [&](std::vector<std::byte>* to, ElementKind kind, int64_t bytes, int64_t phase) {
      to->resize(static_cast<size_t>(phase));
      const std::vector<std::byte> numbers =
          RandomElements(kind, (bytes - phase) / static_cast<int64_t>(kernels::ElementBytes(kind)), random);
      to->insert(to->end(), numbers.begin(), numbers.end());
      to->resize(static_cast<size_t>(bytes));
    };
    const auto phase = static_cast<int64_t>(reinterpret_cast<uintptr_t>(slices_.front().row));
    fill(&returned_, types_.element, at, phase);
    if (factors_) fill(&factor_, types_.sum, factor_at, phase);
  }

  // Row by row, by what the host's kernel makes of a list of rows.
  std::vector<std::byte> Expected(std::vector<std::byte> result, int64_t phase) const {
    for (int64_t row = 0; row < rows_; ++row) {
      std::vector<kernels::Summand> summands;
      const int64_t first = std::max(0, starts_[static_cast<size_t>(row)]);
      const int64_t last =
          std::min<int64_t>(starts_[static_cast<size_t>(row) + 1], static_cast<int64_t>(entries_.size()));
      for (int64_t i = first; i < last; ++i) AddSummand(entries_[static_cast<size_t>(i)], &summands);
      if (summands.empty()) continue;
      kernels::AddUp(result.data() + phase + row * elements_ * sum_bytes_, static_cast<size_t>(elements_), types_,
                     summands.data(), summands.size());
    }
    return result;
  }

  void AddSummand(int64_t entry, std::vector<kernels::Summand>* summands) const {
    for (const Slice& slice : slices_) {
      const int64_t place = entry - slice.begin;
      if (place < 0 || place >= slice.rows) continue;
      const auto row = static_cast<int64_t>(reinterpret_cast<uintptr_t>(slice.row));
      const auto factor = static_cast<int64_t>(reinterpret_cast<uintptr_t>(slice.factor));
      summands->push_back({returned_.data() + row + place * elements_ * element_bytes_,
                           factors_ ? factor_.data() + factor + place * sum_bytes_ : nullptr});
    }
  }

  static constexpr int64_t kEntries = 60;
  const Device& device_;
  const SumTypes types_;
  const int64_t element_bytes_;
  const int64_t sum_bytes_;
  const int64_t elements_;
  const int64_t rows_;
  const bool factors_;
  std::vector<int32_t> starts_;
  std::vector<int32_t> entries_;
  std::vector<Slice> slices_;  // with offsets in place of addresses
  std::vector<std::byte> returned_;
  std::vector<std::byte> factor_;
};

void CheckSums(const Device& device, Random* random) {
  constexpr ElementKind kKinds[] = {ElementKind::kF16, ElementKind::kBF16, ElementKind::kF32, ElementKind::kF64};
  for (const ElementKind element : kKinds) {
    for (const ElementKind sum : kKinds) {
      const SumTypes types = {element, sum};
      if (!kernels::CanSum(types)) continue;
      const bool factors = kernels::CanScale(types) && Below(random, 2) == 0;
      const Context context("kinds " + std::to_string(static_cast<int>(element)) + " and " +
                            std::to_string(static_cast<int>(sum)) + (factors ? ", factors" : ""));
      SumTrial(&device, types, factors, random).Check(random);
    }
  }
}

}  // namespace

void TestIndexedKernels(const Device& device, int trials) {
  Random random(9);
  for (int trial = 0; trial < trials; ++trial) {
    const Context context("trial " + std::to_string(trial));
    CheckGathers(device, &random);
    CheckSums(device, &random);
  }
}

}  // namespace fastjax::test
