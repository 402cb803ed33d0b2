// What a call reads of its device: all that it asked for is there when it is told so, and what goes wrong is said.
#include "backends/gpu/device/fetch.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backends/gpu/device/gpu.h"
#include "kernels/driver.h"
#include "support/check.h"
#include "support/gpu/gpu_rig.h"

namespace fastjax::test {
namespace {

using gpu::Caller;
using gpu::Fetch;
using gpu::Gpu;

struct Setting {
  explicit Setting(const kernels::Driver* driver = fastjax_gpu_driver()) : gpu(std::make_unique<Gpu>(driver)) {
    caller.stream = own.stream;
  }

  OwnStream own;
  std::unique_ptr<Gpu> gpu;
  Caller caller;
};

std::vector<int32_t> Numbered(size_t count, int32_t first) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// More entries than a launch takes, some of them empty, and room for what the host writes.
TEST(Entries) {
  const Setting setting;
  constexpr size_t kEntries = 2 * kernels::kMaxFetched + 1;
  std::vector<std::vector<int32_t>> there;
  std::vector<const int32_t*> here;
  for (size_t i = 0; i < kEntries; ++i) {
    there.push_back(Numbered(i % 5 == 1 ? 0 : 100 * i + 1, static_cast<int32_t>(1000 * i)));
    here.push_back(there.back().data());
  }
  Fetch fetch(setting.gpu.get());
  for (size_t i = 0; i < kEntries; ++i) fetch.Add(&here[i], there[i].size() * sizeof(int32_t));
  std::byte* room = nullptr;
  fetch.AddRoom(&room, 5000);
  CHECK_EQ(fetch.Run(setting.caller).message, "");
  std::memset(room, 1, 5000);
  for (size_t i = 0; i < kEntries; ++i) {
    CHECK(there[i].empty() || here[i] != there[i].data());
    CHECK(there[i].empty() || std::memcmp(here[i], there[i].data(), there[i].size() * sizeof(int32_t)) == 0);
  }
}

// Of a table, what it says is in use; of one that is too short to say so, all.
TEST(Tables) {
  for (const size_t words : {size_t{1}, size_t{3}, size_t{4}, size_t{20}, size_t{4000}}) {
    for (const int32_t entries : {-5, 0, 3, 1 << 30}) {
      const Setting setting;
      std::vector<int32_t> table = Numbered(words, 50);
      if (words > 3) table[3] = entries;
      const int32_t* here = table.data();
      Fetch fetch(setting.gpu.get());
      fetch.AddTable(&here, words * sizeof(int32_t), {4 * sizeof(int32_t), 2 * sizeof(int32_t), 3 * sizeof(int32_t)});
      CHECK_EQ(fetch.Run(setting.caller).message, "");
      const size_t used = words < 4 ? words : std::min(words, 4 + 2 * static_cast<size_t>(std::max(entries, 0)));
      CHECK_EQ(std::memcmp(here, table.data(), used * sizeof(int32_t)), 0);
    }
  }
}

std::vector<int32_t> launched;  // the blocks of each launch

// So many blocks that all shares are in flight at once, up to a limit; of a table, those that may be in use.
TEST(Blocks) {
  static kernels::Driver driver = *fastjax_gpu_driver();
  driver.Fetch = [](const kernels::FetchList* list, int32_t blocks, kernels::Stream stream) {
    launched.push_back(blocks);
    return fastjax_gpu_driver()->Fetch(list, blocks, stream);
  };
  const Setting setting(&driver);
  const std::vector<std::byte> there(200'000);
  const auto run = [&](const std::vector<size_t>& sizes) {
    std::vector<const std::byte*> here(sizes.size(), there.data());
    Fetch fetch(setting.gpu.get());
    for (size_t i = 0; i < sizes.size(); ++i) fetch.AddTable(&here[i], sizes[i], {4, 4, 0});
    CHECK_EQ(fetch.Run(setting.caller).message, "");
  };
  run({128});
  run({128, 128, 128});
  run({16 << 10, 2049});
  run({200'000});
  CHECK(launched == std::vector<int32_t>({1, 2, 5, 32}));
}

// It waits for what is before it on the stream, and reads what that wrote.
TEST(Order) {
  const Setting setting;
  std::vector<int32_t> there = Numbered(300, 0);
  const int32_t* here = there.data();
  const auto write = [](void* data) { static_cast<std::vector<int32_t>*>(data)->assign(300, 9); };
  CHECK_EQ(fastjax_gpu_driver()->CallHost(setting.caller.stream, write, &there), 0);
  Fetch fetch(setting.gpu.get());
  fetch.Add(&here, 300 * sizeof(int32_t));
  CHECK_EQ(fetch.Run(setting.caller).message, "");
  CHECK_EQ(here[0], 9);
  CHECK_EQ(here[299], 9);
}

// Whatever fails is told, and the next call works.
TEST(Faults) {
  const FaultyDriver driver;
  std::vector<std::string> said;
  bool fails = true;
  for (int64_t calls = 0; fails; ++calls) {
    const Context context("call " + std::to_string(calls) + " fails");
    const Setting setting(driver.get());
    const std::vector<int32_t> there = Numbered(10, 3);
    const auto run = [&] {
      const int32_t* here = there.data();
      Fetch fetch(setting.gpu.get());
      fetch.Add(&here, 10 * sizeof(int32_t));
      const Status status = fetch.Run(setting.caller);
      CHECK(!status.ok() || std::memcmp(here, there.data(), 10 * sizeof(int32_t)) == 0);
      return status;
    };
    FaultyDriver::FailAfter(calls);
    const Status status = run();
    fails = FaultyDriver::Stop();
    CHECK(fails || status.ok());
    if (!status.ok()) said.push_back(status.message);
    CHECK_EQ(run().message, "");
  }
  for (const char* const wanted : {"get pinned memory of the host", "make an event", "load its kernels",
                                   "launch a kernel", "record an event", "be chosen"}) {
    bool found = false;
    for (const std::string& message : said) {
      found |= message == "fastjax: emulated device 0 could not " + std::string(wanted) + ": out of memory (2).";
    }
    CHECK(found);
  }
}

}  // namespace
}  // namespace fastjax::test
