// The arithmetic of the GPU's row kernels, on the host: every byte of every run is moved or summed once, whatever the
// alignments, and nothing beside it is touched; the work is split by bytes.
#include "kernels/moves.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/copy.h"
#include "support/check.h"
#include "support/random.h"
#include "support/sums.h"

namespace fastjax::test {
namespace {

using kernels::ElementKind;
using kernels::kAlignment;
using kernels::kSmallTileBytes;
using kernels::kTileBytes;
using kernels::Landing;
using kernels::Move;
using kernels::Worker;

// Memory whose first byte is at a multiple of kAlignment.
class AlignedMemory {
 public:
  AlignedMemory(int64_t bytes, Random* random) : memory_(RandomBytes(static_cast<size_t>(bytes + kAlignment), random)) {
    const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory_.data()) % kAlignment);
    first_ = (kAlignment - at) % kAlignment;
  }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  std::byte* data() { return memory_.data() + first_; }
  const std::vector<std::byte>& all() const { return memory_; }
  int64_t Offset(const std::byte* at) const { return at - memory_.data(); }

 private:
  std::vector<std::byte> memory_;
  int64_t first_ = 0;
};

// Thread by thread and warp by warp, in any order: they share nothing.
template <typename Kernel>
void RunGrid(int64_t warps, int32_t threads, Kernel kernel) {
  for (int64_t warp = warps - 1; warp >= 0; --warp) {
    for (int32_t thread = 0; thread < threads; ++thread) kernel(Worker{warp, warps, thread, threads});
  }
}

struct Grid {
  int64_t warps;
  int32_t threads;
};

Grid RandomGrid(Random* random) {
  return {Below(random, 4) == 0 ? 1 + Below(random, 3000) : 1 + Below(random, 20), Below(random, 2) == 0 ? 32 : 64};
}

std::string Text(const Grid& grid) {
  return std::to_string(grid.warps) + " warps of " + std::to_string(grid.threads) + " threads";
}

// Many lengths that are short, and those around what the kernels cut at.
int64_t RandomLength(Random* random) {
  constexpr int64_t kCuts[] = {kAlignment,      2 * kAlignment, 32 * kAlignment,
                               kSmallTileBytes, kTileBytes,     3 * kTileBytes};
  switch (Below(random, 8)) {
    case 0:
      return std::max<int64_t>(1, kCuts[Below(random, std::size(kCuts))] + Below(random, 65) - 32);
    case 1:
      return 1 + Below(random, 5 * kTileBytes);
    case 2:
      return 1 + Below(random, 1000);
    default:
      return 1 + Below(random, 64);
  }
}

void CheckMoves(const std::vector<Move>& moves, const Grid& grid, const AlignedMemory& dst) {
  const int64_t count = static_cast<int64_t>(moves.size());
  const int64_t end = moves.back().begin + moves.back().bytes;
  std::vector<std::byte> expected = dst.all();
  for (const Move& move : moves) {
    std::memcpy(expected.data() + dst.Offset(move.dst), move.src, static_cast<size_t>(move.bytes));
  }
  RunGrid(grid.warps, grid.threads, [&](const Worker& worker) { kernels::MoveRows(worker, moves.data(), count, end); });
  CHECK(dst.all() == expected);
}

// One run for each of the 256 pairs of alignments, at each length; sources end where their memory does, so that the
// address sanitizer sees what reads too far.
void TestAlignments() {
  Random random(1);
  std::vector<int64_t> lengths;
  for (int64_t bytes = 1; bytes <= 64; ++bytes) lengths.push_back(bytes);
  for (const int64_t cut : {kSmallTileBytes, kTileBytes}) {
    for (const int64_t beside : {-33, -17, -1, 0, 1, 15, 31}) lengths.push_back(cut + beside);
  }
  lengths.push_back(5 * kTileBytes + 7);
  for (const int64_t bytes : lengths) {
    const Context context(std::to_string(bytes) + " bytes");
    const Grid grid = {1 + Below(&random, 3), Below(&random, 2) == 0 ? 32 : 64};
    for (int64_t from = 0; from < kAlignment; ++from) {
      AlignedMemory src(from + bytes, &random);
      for (int64_t to = 0; to < kAlignment; ++to) {
        AlignedMemory dst(bytes + 3 * kAlignment, &random);
        std::byte* at = dst.data() + kAlignment + to;
        CheckMoves({{at, src.data() + from, kernels::NextBegin(0, at), bytes}}, grid, dst);
      }
    }
  }
}

struct Place {
  int64_t at;
  int64_t bytes;
};

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Places of one memory that do not overlap: some side by side, some with bytes of nobody between them. Each has whole
// elements, and begins at a multiple of `alignment`.
std::vector<Place> RandomPlaces(int64_t count, int64_t element, int64_t alignment, Random* random) {
  std::vector<Place> places;
  int64_t at = Below(random, 40);
  for (int64_t i = 0; i < count; ++i) {
    at = RoundUp(at, alignment);
    places.push_back({at, RoundUp(RandomLength(random), element)});
    at += places.back().bytes + (Below(random, 2) == 0 ? 0 : Below(random, 40));
  }
  return places;
}

int64_t EndOf(const std::vector<Place>& places) { return places.back().at + places.back().bytes; }

// Sources begin in the first 64 bytes, or, if all is alike, where their destination does modulo kAlignment.
std::vector<Move> ListMoves(const std::vector<Place>& places, std::byte* dst, const std::byte* src, Random* random) {
  const bool alike = Below(random, 2) == 0;
  std::vector<Move> moves;
  int64_t end = 0;
  for (const Place& place : places) {
    std::byte* to = dst + place.at;
    const int64_t begin = kernels::NextBegin(end, to);
    CHECK_GE(begin, end);
    CHECK_LT(begin, end + kAlignment);
    CHECK_EQ(begin % kAlignment, static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kAlignment));
    moves.push_back({to, src + (alike ? place.at % kAlignment : Below(random, 64)), begin, place.bytes});
    end = begin + place.bytes;
  }
  return moves;
}

void TestRandomMoves() {
  Random random(2);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Place> places = RandomPlaces(1 + Below(&random, trial % 10 == 0 ? 500 : 20), 1, 1, &random);
    const int64_t room = EndOf(places);
    AlignedMemory dst(room + 64, &random);
    AlignedMemory src(5 * kTileBytes + 64, &random);
    const Grid grid = RandomGrid(&random);
    const Context context("trial " + std::to_string(trial) + ", " + Text(grid));
    // In any order of destinations: only the line is ordered.
    std::shuffle(places.begin(), places.end(), random);
    CheckMoves(ListMoves(places, dst.data(), src.data(), &random), grid, dst);
  }
}

// Every thread writes bytes that no other writes: what one has written is counted and taken back before the next.
void TestWrittenOnce() {
  Random random(6);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t count = 1 + Below(&random, 3);
    const Grid grid = {1 + Below(&random, 3), trial % 2 == 0 ? 32 : 64};
    const Context context("trial " + std::to_string(trial) + ", " + Text(grid));
    std::vector<std::byte> dst(static_cast<size_t>(count) * 3000);
    const std::vector<std::byte> src(3000, std::byte{1});
    std::vector<Place> places;
    for (int64_t i = 0; i < count; ++i) places.push_back({i * 3000 + Below(&random, 16), 1 + Below(&random, 2900)});
    const std::vector<Move> moves = ListMoves(places, dst.data(), src.data(), &random);
    std::vector<int> wanted(dst.size());
    for (const Place& place : places) std::fill_n(wanted.begin() + place.at, place.bytes, 1);
    std::vector<int> written(dst.size());
    RunGrid(grid.warps, grid.threads, [&](const Worker& worker) {
      kernels::MoveRows(worker, moves.data(), count, moves.back().begin + moves.back().bytes);
      for (size_t i = 0; i < dst.size(); ++i) written[i] += static_cast<int>(std::exchange(dst[i], std::byte{0}));
    });
    CHECK(written == wanted);
  }
}

struct Run {
  int64_t begin;
  int64_t bytes;
};

void TestFindRun() {
  Random random(3);
  for (int64_t count = 1; count <= 40; ++count) {
    std::vector<Run> runs;
    int64_t end = Below(&random, 3);
    for (int64_t i = 0; i < count; ++i) {
      runs.push_back({end + Below(&random, 4), 1 + Below(&random, 5)});
      end = runs.back().begin + runs.back().bytes;
    }
    for (int64_t position = 0; position < end + 3; ++position) {
      int64_t wanted = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (runs[static_cast<size_t>(i)].begin <= position) wanted = i;
      }
      CHECK_EQ(kernels::FindRun(runs.data(), count, position), wanted);
    }
  }
}

void TestNextBegin() {
  Random random(4);
  AlignedMemory memory(64, &random);
  for (int64_t end = 0; end < 64; ++end) {
    for (int64_t phase = 0; phase < 32; ++phase) {
      int64_t wanted = end;
      while (wanted % kAlignment != phase % kAlignment) ++wanted;
      CHECK_EQ(kernels::NextBegin(end, memory.data() + phase), wanted);
    }
  }
}

// ForEachPart gives every byte of the runs to one warp once, in parts that lie on one tile, and no warp too many.
void CheckSplit(const std::vector<Run>& runs, const Grid& grid) {
  const auto count = static_cast<int64_t>(runs.size());
  const int64_t end = runs.back().begin + runs.back().bytes;
  std::vector<uint32_t> given(static_cast<size_t>(end));
  const int64_t tile = kernels::TileBytes(end, grid.warps);
  CHECK(tile >= kSmallTileBytes && tile <= kTileBytes);
  int64_t busiest = 0;
  bool within = true;
  for (int64_t warp = 0; warp < grid.warps; ++warp) {
    int64_t bytes_of_warp = 0;
    for (int32_t thread = 0; thread < grid.threads; ++thread) {
      kernels::ForEachPart(Worker{warp, grid.warps, thread, grid.threads}, runs.data(), count, end,
                           [&](const Worker& group, const Run& run, int64_t first, int64_t bytes) {
                             within = within && first >= 0 && bytes > 0 && first + bytes <= run.bytes;
                             within = within && group.thread >= 0 && group.thread < group.threads;
                             within = within && (run.begin + first) / tile == (run.begin + first + bytes - 1) / tile;
                             if (group.thread != 0) return;  // its group's first thread counts for all
                             bytes_of_warp += bytes;
                             for (int64_t i = 0; i < bytes; ++i) ++given[static_cast<size_t>(run.begin + first + i)];
                           });
    }
    busiest = std::max(busiest, bytes_of_warp);
  }
  std::vector<uint32_t> wanted(given.size());
  for (const Run& run : runs) {
    for (int64_t i = run.begin; i < run.begin + run.bytes; ++i) wanted[static_cast<size_t>(i)] = 1;
  }
  CHECK(within);
  CHECK(given == wanted);
  // With n = ceil(end / tile) tiles, a warp has at most ceil(n / warps) of them, which is ceil(end / (tile * warps)).
  const int64_t round = tile * grid.warps;
  CHECK_LE(busiest, (end + round - 1) / round * tile);
  CHECK_LE(busiest, (end + grid.warps - 1) / grid.warps + tile);
}

// Of a group's threads each has its own number, and together they are the warp's.
void TestGroups() {
  const std::vector<Run> runs(200, Run{0, 1});
  for (const int32_t threads : {32, 64}) {
    std::vector<Run> line = runs;
    for (size_t i = 0; i < line.size(); ++i) line[i].begin = static_cast<int64_t>(i) * kAlignment;
    std::vector<std::vector<int32_t>> seen(line.size());
    RunGrid(1, threads, [&](const Worker& worker) {
      kernels::ForEachPart(worker, line.data(), static_cast<int64_t>(line.size()), line.back().begin + 1,
                           [&](const Worker& group, const Run& run, int64_t /*first*/, int64_t /*bytes*/) {
                             seen[static_cast<size_t>(run.begin / kAlignment)].push_back(group.thread);
                             CHECK_EQ(group.threads, kernels::kGroupThreads);
                           });
    });
    for (const std::vector<int32_t>& of_run : seen) {
      CHECK_EQ(of_run.size(), static_cast<size_t>(kernels::kGroupThreads));
      for (size_t i = 0; i < of_run.size(); ++i) CHECK_EQ(of_run[i], static_cast<int32_t>(i));
    }
  }
}

void TestSplit() {
  Random random(5);
  for (int trial = 0; trial < 100; ++trial) {
    const Grid grid = RandomGrid(&random);
    const Context context("trial " + std::to_string(trial) + ", " + Text(grid));
    std::vector<Run> runs;
    const bool skewed = trial % 2 == 0;
    const int64_t count = skewed ? 300 : 1 + Below(&random, 60);
    const int64_t huge = Below(&random, count);
    int64_t end = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t bytes = skewed ? (i == huge ? 60 * kTileBytes + 5 : 1 + Below(&random, 40)) : RandomLength(&random);
      runs.push_back({end + Below(&random, kAlignment), bytes});
      end = runs.back().begin + bytes;
    }
    CheckSplit(runs, grid);
  }
}

// 0, 1, infinity, a NaN: what can go wrong in a sum; the rest is random bits.
template <typename Bits>
Bits RandomBits(Random* random, int mantissa) {
  const Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const Bits infinity = static_cast<Bits>(sign - (Bits{1} << mantissa));
  const auto any = static_cast<Bits>((*random)());
  const Bits fraction = static_cast<Bits>(any & ((Bits{1} << mantissa) - 1));
  const Bits of_sign = static_cast<Bits>((*random)() % 2 == 0 ? 0 : sign);
  switch (Below(random, 16)) {
    case 0:
      return of_sign;
    case 1:
      return static_cast<Bits>(of_sign | infinity);
    case 2:
      return static_cast<Bits>(of_sign | infinity | fraction);
    case 3:
    case 4:
      return static_cast<Bits>(of_sign | fraction);  // subnormal
    case 5:
      return static_cast<Bits>(of_sign | (infinity - 1));  // the largest
    default:
      return any;
  }
}

template <typename Element>
struct Kind;
template <>
struct Kind<kernels::F16> {
  static constexpr ElementKind kKind = ElementKind::kF16;
  static constexpr int kMantissa = 10;
  using Bits = uint16_t;
};
template <>
struct Kind<kernels::BF16> {
  static constexpr ElementKind kKind = ElementKind::kBF16;
  static constexpr int kMantissa = 7;
  using Bits = uint16_t;
};
template <>
struct Kind<kernels::F32> {
  static constexpr ElementKind kKind = ElementKind::kF32;
  static constexpr int kMantissa = 23;
  using Bits = uint32_t;
};
template <>
struct Kind<kernels::F64> {
  static constexpr ElementKind kKind = ElementKind::kF64;
  static constexpr int kMantissa = 52;
  using Bits = uint64_t;
};

template <typename Element>
bool IsNaN(typename Kind<Element>::Bits bits) {
  using Bits = typename Kind<Element>::Bits;
  const auto sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const auto infinity = static_cast<Bits>(sign - (Bits{1} << Kind<Element>::kMantissa));
  return (bits & static_cast<Bits>(~sign)) > infinity;
}

// The bytes that kernels::AddUp makes, source by source. Where two NaNs meet, processors may keep either: those
// elements are marked, and need only be NaNs.
template <typename Element>
std::vector<std::byte> AddUp(const std::vector<const std::byte*>& sources, int64_t bytes, std::vector<bool>* either) {
  using Bits = typename Kind<Element>::Bits;
  std::vector<std::byte> sum(static_cast<size_t>(bytes));
  for (const std::byte* source : sources) {
    for (size_t i = 0; i < either->size(); ++i) {
      Bits a;
      Bits b;
      std::memcpy(&a, sum.data() + i * sizeof(Bits), sizeof(Bits));
      std::memcpy(&b, source + i * sizeof(Bits), sizeof(Bits));
      if (IsNaN<Element>(a) && IsNaN<Element>(b)) (*either)[i] = true;
    }
    AddTo(sum.data(), source, sum.size(), Kind<Element>::kKind);
  }
  return sum;
}

template <typename Element>
class SumTrial {
 public:
  explicit SumTrial(Random* random)
      : random_(random),
        alignment_(Below(random, 2) == 0 ? kAlignment : kBytes),
        places_(RandomPlaces(1 + Below(random, 12), kBytes, Below(random, 4) == 0 ? 1 : alignment_, random)),
        dst_(EndOf(places_) + 64, random),
        src_(kValues * kBytes + kAlignment, random),
        expected_(dst_.all()) {
    const int64_t phase = Below(random, 4) == 0 ? Below(random, kAlignment) : 0;
    values_ = src_.data() + phase;
    for (int64_t i = 0; i < kValues; ++i) {
      const auto bits = RandomBits<Bits>(random, Kind<Element>::kMantissa);
      std::memcpy(src_.data() + phase + i * kBytes, &bits, sizeof(bits));
    }
    for (const Place& place : places_) Land(place);
  }

  void Check(const Grid& grid) {
    RunGrid(grid.warps, grid.threads, [&](const Worker& worker) {
      kernels::SumRows<Element>(worker, landings_.data(), sources_.data(), static_cast<int64_t>(landings_.size()),
                                end_);
    });
    std::vector<std::byte> got = dst_.all();
    bool are_nans = true;
    for (const int64_t at : either_) {
      Bits bits;
      std::memcpy(&bits, got.data() + at, sizeof(bits));
      are_nans = are_nans && IsNaN<Element>(bits);
      std::copy_n(expected_.begin() + at, kBytes, got.begin() + at);
    }
    CHECK(are_nans);
    CHECK(got == expected_);
  }

 private:
  using Bits = typename Kind<Element>::Bits;
  static constexpr auto kBytes = static_cast<int64_t>(sizeof(Bits));
  static constexpr int64_t kValues = 6 * kTileBytes / kBytes;

  // Lists the place with up to 5 sources, none included.
  void Land(const Place& place) {
    const int64_t begin = RoundUp(end_, kAlignment);
    std::vector<const std::byte*> own(static_cast<size_t>(Below(random_, 6)));
    for (const std::byte*& source : own) {
      source = values_ + Below(random_, (kValues * kBytes - place.bytes) / alignment_) * alignment_;
    }
    landings_.push_back({dst_.data() + place.at, begin, place.bytes, static_cast<int32_t>(sources_.size()),
                         static_cast<int32_t>(own.size())});
    std::vector<bool> either(static_cast<size_t>(place.bytes / kBytes));
    const std::vector<std::byte> sum = AddUp<Element>(own, place.bytes, &either);
    const int64_t at = dst_.Offset(landings_.back().dst);
    std::copy(sum.begin(), sum.end(), expected_.begin() + at);
    for (size_t i = 0; i < either.size(); ++i) {
      if (either[i]) either_.push_back(at + static_cast<int64_t>(i) * kBytes);
    }
    sources_.insert(sources_.end(), own.begin(), own.end());
    end_ = begin + place.bytes;
  }

  Random* random_;
  int64_t alignment_;
  std::vector<Place> places_;
  AlignedMemory dst_;
  AlignedMemory src_;
  const std::byte* values_ = nullptr;
  std::vector<std::byte> expected_;
  std::vector<Landing> landings_;
  std::vector<const std::byte*> sources_;
  std::vector<int64_t> either_;
  int64_t end_ = 0;
};

template <typename Element>
void TestSums(const char* name) {
  Random random(7);
  for (int trial = 0; trial < 50; ++trial) {
    const Grid grid = RandomGrid(&random);
    const Context context(std::string(name) + ", trial " + std::to_string(trial) + ", " + Text(grid));
    SumTrial<Element>(&random).Check(grid);
  }
}

// One landing of two sources, of all alignments to each other and to it. They end where their memory does, so that the
// address sanitizer sees what reads too far.
template <typename Element>
void TestSumAlignments() {
  using Bits = typename Kind<Element>::Bits;
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Bits));
  Random random(8);
  for (const int64_t length : {8, 16, 24, 40, 48, 64, 200, 1024, 2048 + 8, 8192 - 16, 3 * 8192 + 40}) {
    const Grid grid = {1 + Below(&random, 3), Below(&random, 2) == 0 ? 32 : 64};
    for (int64_t pair = 0; pair < kAlignment * kAlignment; ++pair) {
      const int64_t phases[] = {pair % kAlignment, pair / kAlignment};
      const int64_t to = pair % 3 == 0 ? Below(&random, kAlignment) : Below(&random, kAlignment / kBytes) * kBytes;
      const Context context(std::to_string(length) + " bytes at " + std::to_string(to) + ", from " +
                            std::to_string(phases[0]) + " and " + std::to_string(phases[1]));
      std::vector<std::byte> memory[2];
      std::vector<const std::byte*> sources;
      for (size_t i = 0; i < 2; ++i) {
        memory[i].resize(static_cast<size_t>(phases[i] + length));
        sources.push_back(memory[i].data() + phases[i]);
        for (int64_t at = 0; at < length; at += kBytes) {
          const auto small = static_cast<Bits>(random() & ~(Bits{3} << (8 * kBytes - 3)));  // no sum is a NaN
          std::memcpy(memory[i].data() + phases[i] + at, &small, sizeof(small));
        }
      }
      AlignedMemory dst(length + 2 * kAlignment, &random);
      std::vector<std::byte> expected = dst.all();
      const Landing landing = {dst.data() + to, 0, length, 0, 2};
      std::vector<bool> either(static_cast<size_t>(length / kBytes));
      const std::vector<std::byte> sum = AddUp<Element>(sources, length, &either);
      std::copy(sum.begin(), sum.end(), expected.begin() + dst.Offset(landing.dst));
      RunGrid(grid.warps, grid.threads,
              [&](const Worker& worker) { kernels::SumRows<Element>(worker, &landing, sources.data(), 1, length); });
      CHECK(dst.all() == expected);
    }
  }
}

}  // namespace
}  // namespace fastjax::test

int main() {
  fastjax::test::TestNextBegin();
  fastjax::test::TestFindRun();
  fastjax::test::TestAlignments();
  fastjax::test::TestRandomMoves();
  fastjax::test::TestWrittenOnce();
  fastjax::test::TestSplit();
  fastjax::test::TestGroups();
  fastjax::test::TestSums<fastjax::kernels::F16>("F16");
  fastjax::test::TestSums<fastjax::kernels::BF16>("BF16");
  fastjax::test::TestSums<fastjax::kernels::F32>("F32");
  fastjax::test::TestSums<fastjax::kernels::F64>("F64");
  fastjax::test::TestSumAlignments<fastjax::kernels::BF16>();
  fastjax::test::TestSumAlignments<fastjax::kernels::F32>();
  fastjax::test::TestSumAlignments<fastjax::kernels::F64>();
  return fastjax::test::Finish("moves_test");
}
