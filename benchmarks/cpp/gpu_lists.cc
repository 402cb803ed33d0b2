#include "gpu_lists.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/copy.h"
#include "kernels/sum.h"

namespace fastjax::bench {

using gpu_support::Device;
using gpu_support::DeviceList;
using gpu_support::Memory;
using gpu_support::MoveLine;
using gpu_support::Random;
using kernels::ElementKind;
using kernels::Move;
using kernels::Slice;

namespace {

constexpr int32_t kPeers = 32;
constexpr double kExponent = 0.8;
// More runs than this say nothing new, and take long to list.
constexpr int64_t kMostRuns = 1 << 20;
constexpr kernels::SumTypes kSummed = {ElementKind::kBF16, ElementKind::kBF16};

std::vector<int64_t> RunsOf(const GpuCase& which, int64_t rows, Random* random) {
  if (which.updates == 0) return std::vector<int64_t>(static_cast<size_t>(rows), 1);
  std::vector<int64_t> runs;
  for (const int64_t to_peer : gpu_support::ZipfRows(kPeers, kExponent, rows, random)) {
    const std::vector<int64_t> parts = gpu_support::Split(to_peer, which.updates, random);
    runs.insert(runs.end(), parts.begin(), parts.end());
  }
  return runs;
}

// Where each run begins, in rows, if they lie one behind the other in random order.
std::vector<int64_t> Shuffled(const std::vector<int64_t>& runs, Random* random) {
  std::vector<size_t> order(runs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), *random);
  std::vector<int64_t> first(runs.size());
  int64_t at = 0;
  for (const size_t run : order) {
    first[run] = at;
    at += runs[run];
  }
  return first;
}

// At most `bytes` bytes, in whole rows, from src to dst: side by side at one end, and at the other in random order.
MoveLine MakeLine(const GpuCase& which, int64_t bytes, std::byte* dst, const std::byte* src, Random* random) {
  const std::vector<int64_t> runs = RunsOf(which, bytes / which.row_bytes, random);
  const std::vector<int64_t> apart = Shuffled(runs, random);
  MoveLine line;
  int64_t side_by_side = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t to = which.gathers ? side_by_side : apart[i];
    const int64_t from = which.gathers ? apart[i] : side_by_side;
    line.Add(dst + to * which.row_bytes, src + from * which.row_bytes, runs[i] * which.row_bytes);
    side_by_side += runs[i];
  }
  return line;
}

}  // namespace

std::string NameOf(const GpuCase& which) {
  std::string way = which.gathers ? "gather" : "scatter";
  if (which.sources > 0) way = "listed sum of " + std::to_string(which.sources) + ", " + way;
  const std::string rows = std::to_string(which.row_bytes) + " B rows, ";
  if (which.updates == 0) return way + " " + rows + "each alone";
  return way + " " + rows + std::to_string(which.updates) + " a peer";
}

std::vector<GpuCase> CasesOf(int64_t bytes) {
  constexpr double kGoal = 0.9;
  constexpr double kShortRowsGoal = 0.7;
  std::vector<GpuCase> cases;
  for (const bool gathers : {true, false}) {
    for (const int64_t row_bytes : {4096 * 2, 7168 * 2}) {  // of bfloat16
      for (const int32_t updates : {1, 8, 32}) cases.push_back({gathers, row_bytes, updates, kGoal});
    }
    cases.push_back({gathers, 4096 * 2, 0, std::nullopt});
    cases.push_back({gathers, 256, 32, kShortRowsGoal});
    for (const int32_t sources : {1, 2}) cases.push_back({gathers, 4096 * 2, 8, std::nullopt, sources});
    if (bytes / 256 <= kMostRuns) cases.push_back({gathers, 256, 0, kShortRowsGoal});
  }
  return cases;
}

GpuArena::GpuArena(const Device* device, int64_t bytes, int64_t bytes_of_all)
    : size(static_cast<size_t>(bytes)),
      parts(static_cast<size_t>(std::max<int64_t>(1, bytes_of_all / bytes))),
      src(device, size * parts),
      dst(device, size * parts),
      nothing(device, size),
      seen(device, size, Memory::Place::kHost) {
  Random random(1);
  rows = gpu_support::RandomBytes(size, &random);
  // Without this bit of the exponent, numbers are finite: what a sum is that is none differs between processors.
  for (size_t i = 1; i < size; i += 2) rows[i] &= std::byte{0xBF};
  for (size_t part = 0; part < parts; ++part) device->Copy(src.data() + part * size, rows.data(), size);
  device->Wait();
  nothing.Fill(gpu_support::RandomBytes(size, &random));
}

GpuLists::GpuLists(const Device* device, const GpuCase& which, const GpuArena* arena, Random* random)
    : device_(device), which_(which), arena_(arena) {
  for (size_t number = 0; number < arena->parts; ++number) {
    const std::byte* const src = arena->src.data() + number * arena->size;
    std::byte* const dst = arena->dst.data() + number * arena->size;
    Part part;
    part.line = MakeLine(which, static_cast<int64_t>(arena->size), dst, src, random);
    if (which.sources == 0) {
      part.moves = std::make_unique<DeviceList<Move>>(device, part.line.moves);
    } else {
      MakeSums(&part, dst, src);
    }
    parts_.push_back(std::move(part));
  }
}

// The second source of a run lies as far from the end as the first does from the beginning.
size_t GpuLists::SourceOf(size_t first, int64_t run_bytes, int32_t source) const {
  return source == 0 ? first : arena_->size - first - static_cast<size_t>(run_bytes);
}

// As an exchange sums rows that land on each other: each row is an entry of a slice, and is listed where it lands.
void GpuLists::MakeSums(Part* part, std::byte* dst, const std::byte* src) const {
  const int64_t row_bytes = which_.row_bytes;
  const auto rows = static_cast<size_t>(static_cast<int64_t>(arena_->size) / row_bytes);
  std::vector<Slice> slices;
  std::vector<std::vector<int32_t>> of_row(rows);
  int32_t entries = 0;
  for (const Move& move : part->line.moves) {
    const auto first = static_cast<size_t>(move.src - src);
    for (int32_t i = 0; i < which_.sources; ++i) {
      slices.push_back({entries, move.bytes / row_bytes, src + SourceOf(first, move.bytes, i), nullptr});
      for (int64_t at = 0; at < move.bytes; at += row_bytes) {
        of_row[static_cast<size_t>((move.dst - dst + at) / row_bytes)].push_back(entries++);
      }
    }
  }
  std::vector<int32_t> starts = {0};
  std::vector<int32_t> listed;
  for (const std::vector<int32_t>& own : of_row) {
    listed.insert(listed.end(), own.begin(), own.end());
    starts.push_back(static_cast<int32_t>(listed.size()));
  }
  part->slices = std::make_unique<DeviceList<Slice>>(device_, slices);
  part->starts = std::make_unique<DeviceList<int32_t>>(device_, starts);
  part->entries = std::make_unique<DeviceList<int32_t>>(device_, listed);
  part->sum.result = dst;
  part->sum.rows = static_cast<int64_t>(rows);
  part->sum.elements = row_bytes / 2;
  part->sum.starts = part->starts->data();
  part->sum.entries = part->entries->data();
  part->sum.num_entries = entries;
  part->sum.slices = part->slices->data();
  part->sum.num_slices = static_cast<int64_t>(slices.size());
  part->sum.aligned = kernels::IsAligned(part->sum, slices.data(), kSummed);
}

void GpuLists::Launch(int repetition) const {
  const Part& part = parts_[static_cast<size_t>(repetition) % parts_.size()];
  const auto count = static_cast<int64_t>(part.line.moves.size());
  const int32_t blocks = gpu_support::BlocksFor(part.line.end, device_->max_blocks());
  const kernels::Driver& driver = device_->driver();
  const int code = which_.sources == 0
                       ? driver.MoveRows(part.moves->data(), count, part.line.end, blocks, device_->stream())
                       : driver.SumIndexed(kSummed, &part.sum, blocks, device_->stream());
  device_->Must(code, "launch a kernel");
}

bool GpuLists::IsRight() const {
  device_->Copy(arena_->dst.data(), arena_->nothing.data(), arena_->size);
  Launch(0);
  device_->Copy(arena_->seen.data(), arena_->dst.data(), arena_->size);
  device_->Wait();
  std::vector<std::byte> wanted;
  for (const Move& move : parts_.front().line.moves) {
    if (!IsRight(move, &wanted)) return false;
  }
  return true;
}

bool GpuLists::IsRight(const Move& move, std::vector<std::byte>* wanted) const {
  const auto first = static_cast<size_t>(move.src - arena_->src.data());
  const auto bytes = static_cast<size_t>(move.bytes);
  const std::byte* const found = arena_->seen.data() + (move.dst - arena_->dst.data());
  if (which_.sources == 0) return std::memcmp(found, arena_->rows.data() + first, bytes) == 0;
  std::vector<kernels::Summand> rows;
  for (int32_t i = 0; i < which_.sources; ++i) {
    rows.push_back({arena_->rows.data() + SourceOf(first, move.bytes, i), nullptr});
  }
  wanted->resize(bytes);
  kernels::AddUp(wanted->data(), bytes / kernels::ElementBytes(kSummed.element), kSummed, rows.data(), rows.size());
  return std::memcmp(found, wanted->data(), bytes) == 0;
}

}  // namespace fastjax::bench
