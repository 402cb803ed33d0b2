// The arithmetic of the kernel that fetches, on the host: every byte in use is written once, whatever the alignments,
// and nothing else; the work is shared by all warps.
#include "kernels/fetch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/check.h"
#include "support/random.h"

namespace fastjax::test {
namespace {

using kernels::FetchList;
using kernels::kShareBytes;
using kernels::Worker;

// Memory that ends where what is in it ends, so that the address sanitizer sees what reads too far; it begins `phase`
// bytes after a multiple of 16.
class Block {
 public:
  Block(int64_t phase, int64_t bytes) : phase_(phase), memory_(new std::byte[static_cast<size_t>(phase + bytes)]()) {
    CHECK_EQ(reinterpret_cast<uintptr_t>(memory_.get()) % 16, 0U);
  }
  std::byte* data() const { return memory_.get() + phase_; }

 private:
  int64_t phase_;
  std::unique_ptr<std::byte[]> memory_;
};

struct Written {
  std::vector<int> times;      // by byte
  std::vector<int64_t> bytes;  // by warp
};

// Runs a grid on a list of one place: whatever a thread writes is counted, and taken back before the next. Sources must
// not be zero.
Written CountWrites(const FetchList& list, std::byte* to, int64_t bytes, int64_t warps, int32_t threads) {
  Written written{std::vector<int>(static_cast<size_t>(bytes)), std::vector<int64_t>(static_cast<size_t>(warps))};
  for (int64_t warp = 0; warp < warps; ++warp) {
    for (int32_t thread = 0; thread < threads; ++thread) {
      kernels::Fetch(Worker{warp, warps, thread, threads}, list);
      for (int64_t i = 0; i < bytes; ++i) {
        const bool touched = std::exchange(to[i], std::byte{0}) != std::byte{0};
        written.times[static_cast<size_t>(i)] += touched ? 1 : 0;
        written.bytes[static_cast<size_t>(warp)] += touched ? 1 : 0;
      }
    }
  }
  return written;
}

void Run(const FetchList& list, int64_t warps, int32_t threads) {
  for (int64_t warp = warps - 1; warp >= 0; --warp) {
    for (int32_t thread = 0; thread < threads; ++thread) kernels::Fetch(Worker{warp, warps, thread, threads}, list);
  }
}

// All pairs of alignments, at lengths around the units and the shares.
TEST(Alignments) {
  Random random(1);
  std::vector<int64_t> lengths = {1, 3, 4, 15, 16, 17, 60, 64, 500, 512};
  for (const int64_t beside : {-16, -4, -1, 0, 1, 4, 16}) {
    for (const int64_t shares : {1, 3}) lengths.push_back(shares * kShareBytes + beside);
  }
  for (const int64_t bytes : lengths) {
    for (int64_t from = 0; from < 16; ++from) {
      for (int64_t to = 0; to < 16; ++to) {
        const Block source(from, bytes);
        const Block target(to, bytes);
        for (int64_t i = 0; i < bytes; ++i) source.data()[i] = static_cast<std::byte>(random());
        FetchList list;
        list.count = 1;
        list.pieces[0] = {target.data(), source.data(), bytes};
        Run(list, 1 + Below(&random, 5), Below(&random, 2) == 0 ? 32 : 64);
        CHECK_EQ(std::memcmp(target.data(), source.data(), static_cast<size_t>(bytes)), 0);
      }
    }
  }
}

// Each byte once, and no warp has more than its share of the shares.
TEST(Shares) {
  Random random(2);
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t unit = int64_t{1} << (2 * Below(&random, 3));
    const int64_t bytes = unit * (1 + Below(&random, 20'000 / unit));
    const int64_t warps = 1 + Below(&random, 12);
    const Context context(std::to_string(bytes) + " bytes, " + std::to_string(warps) + " warps");
    const Block source(0, bytes);
    const Block target(0, bytes);
    std::fill_n(source.data(), bytes, std::byte{1});
    FetchList list;
    list.count = 2;
    const int64_t first = std::min(bytes, 16 * Below(&random, 600));
    list.pieces[0] = {target.data(), source.data(), first};
    list.pieces[1] = {target.data() + first, source.data() + first, bytes - first};
    const Written written = CountWrites(list, target.data(), bytes, warps, trial % 2 == 0 ? 32 : 64);
    CHECK(std::all_of(written.times.begin(), written.times.end(), [](int times) { return times == 1; }));
    const int64_t shares = kernels::CountShares(first) + kernels::CountShares(bytes - first);
    const int64_t most = (shares + warps - 1) / warps * kShareBytes;
    CHECK_LE(*std::max_element(written.bytes.begin(), written.bytes.end()), most);
  }
}

}  // namespace
}  // namespace fastjax::test
