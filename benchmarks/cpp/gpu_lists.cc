#include "gpu_lists.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/copy.h"
#include "kernels/sum.h"

namespace fastjax::bench {

using gpu_support::Device;
using gpu_support::DeviceList;
using gpu_support::Memory;
using gpu_support::Random;
using kernels::ElementKind;
using kernels::Landing;
using kernels::Move;

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
      MakeSums(&part, src);
    }
    parts_.push_back(std::move(part));
  }
}

// The second source of a run lies as far from the end as the first does from the beginning.
size_t GpuLists::SourceOf(size_t first, int64_t run_bytes, int32_t source) const {
  return source == 0 ? first : arena_->size - first - static_cast<size_t>(run_bytes);
}

// Rows are aligned, so that landings lie on the line where moves do.
void GpuLists::MakeSums(Part* part, const std::byte* src) const {
  std::vector<Landing> landings;
  std::vector<const std::byte*> sources;
  for (const Move& move : part->line.moves) {
    landings.push_back({move.dst, move.begin, move.bytes, static_cast<int32_t>(sources.size()), which_.sources});
    const auto first = static_cast<size_t>(move.src - src);
    for (int32_t i = 0; i < which_.sources; ++i) sources.push_back(src + SourceOf(first, move.bytes, i));
  }
  part->landings = std::make_unique<DeviceList<Landing>>(device_, landings);
  part->sources = std::make_unique<DeviceList<const std::byte*>>(device_, sources);
}

void GpuLists::Launch(int repetition) const {
  const Part& part = parts_[static_cast<size_t>(repetition) % parts_.size()];
  const auto count = static_cast<int64_t>(part.line.moves.size());
  const int32_t blocks = gpu_support::BlocksFor(part.line.end, device_->max_blocks());
  const kernels::Driver& driver = device_->driver();
  const int code = which_.sources == 0
                       ? driver.MoveRows(part.moves->data(), count, part.line.end, blocks, device_->stream())
                       : driver.SumRows(ElementKind::kBF16, part.landings->data(), part.sources->data(), count,
                                        part.line.end, blocks, device_->stream());
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
  kernels::AddUp(wanted->data(), bytes / kernels::ElementBytes(ElementKind::kBF16),
                 {ElementKind::kBF16, ElementKind::kBF16}, rows.data(), rows.size());
  return std::memcmp(found, wanted->data(), bytes) == 0;
}

}  // namespace fastjax::bench
