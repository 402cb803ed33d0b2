// The lists of rows that the GPU's kernels are timed on, and the rows that they are about.
#ifndef FASTJAX_BENCHMARKS_CPP_GPU_LISTS_H_
#define FASTJAX_BENCHMARKS_CPP_GPU_LISTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/gpu_driver/device.h"
#include "support/gpu_driver/lists.h"

namespace fastjax::bench {

// Rows to 32 peers, of a popularity that falls as 1 / rank^0.8.
struct GpuCase {
  bool gathers;  // runs lie apart where they are read, or where they are written
  int64_t row_bytes;
  int32_t updates;             // runs to each peer; 0: every row is a run of its own
  std::optional<double> goal;  // the share of a copy's bandwidth that is wanted
  int32_t sources = 0;         // 0: rows are moved; else each is the sum of so many, of bfloat16s
};

std::string NameOf(const GpuCase& which);

// All that are timed with lines of about so many bytes.
std::vector<GpuCase> CasesOf(int64_t bytes);

// The rows of all lists of one size, many times over: repetitions that go from part to part do not find them in a
// cache.
struct GpuArena {
  GpuArena(const gpu_support::Device* device, int64_t bytes, int64_t bytes_of_all);

  const size_t size;
  const size_t parts;
  const gpu_support::Memory src;
  const gpu_support::Memory dst;
  const gpu_support::Memory nothing;  // what no row looks like
  const gpu_support::Memory seen;
  std::vector<std::byte> rows;  // of every part of src: bfloat16s, none of them infinite or no number
};

// A case's lists, one for each part of the arena.
class GpuLists {
 public:
  GpuLists(const gpu_support::Device* device, const GpuCase& which, const GpuArena* arena, gpu_support::Random* random);

  const GpuCase& which() const { return which_; }
  int64_t bytes() const { return parts_.front().line.bytes; }  // that are written
  int64_t runs() const { return static_cast<int64_t>(parts_.front().line.moves.size()); }
  // Bytes read and written for each that is written, by those of a copy.
  double traffic() const { return which_.sources == 0 ? 1 : (which_.sources + 1) / 2.0; }

  void Launch(int repetition) const;
  // Whether every byte of every row is what it should be.
  bool IsRight() const;

 private:
  struct Part {
    gpu_support::MoveLine line;
    std::unique_ptr<gpu_support::DeviceList<kernels::Move>> moves;
    std::unique_ptr<gpu_support::DeviceList<kernels::Slice>> slices;
    std::unique_ptr<gpu_support::DeviceList<int32_t>> starts;
    std::unique_ptr<gpu_support::DeviceList<int32_t>> entries;
    kernels::IndexedSum sum{};
  };

  void MakeSums(Part* part, std::byte* dst, const std::byte* src) const;
  bool IsRight(const kernels::Move& move, std::vector<std::byte>* wanted) const;
  // Offset in src of what is added up, of a run whose moves would begin at `first`.
  size_t SourceOf(size_t first, int64_t run_bytes, int32_t source) const;

  const gpu_support::Device* device_;
  GpuCase which_;
  const GpuArena* arena_;
  std::vector<Part> parts_;
};

}  // namespace fastjax::bench

#endif  // FASTJAX_BENCHMARKS_CPP_GPU_LISTS_H_
