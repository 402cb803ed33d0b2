// A GPU's driver: its kernels move and sum what the host's do, whatever the alignments, and touch nothing beside it;
// its streams and events keep order, and what it refuses it says.
//
//   gpu_driver_test [--small] [LIBRARY]
//
// Without a library, the emulated driver. --small is for compute-sanitizer, under which every access takes its time.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "indexed_kernels.h"
#include "kernels/copy.h"
#include "support/check.h"
#include "support/gpu_driver/device.h"
#include "support/gpu_driver/lists.h"

namespace fastjax::test {
namespace {

using gpu_support::Below;
using gpu_support::Device;
using gpu_support::DeviceList;
using gpu_support::Memory;
using gpu_support::MoveLine;
using gpu_support::Random;
using gpu_support::RandomBytes;
using kernels::ElementKind;

// How much of everything.
struct Scale {
  int trials;
  int64_t longest;  // run
};

int32_t RandomBlocks(const Device& device, int64_t end, Random* random) {
  const int32_t usual = gpu_support::BlocksFor(end, device.max_blocks());
  return Below(random, 2) == 0 ? usual : 1 + static_cast<int32_t>(Below(random, 2 * int64_t{device.max_blocks()}));
}

// Where they differ first; -1: nowhere.
int64_t FirstDifference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return at.first == a.end() && at.second == b.end() ? -1 : at.first - a.begin();
}

// Runs of one trial: lengths, and gaps that belong to nobody before each and behind the last.
struct Places {
  std::vector<int64_t> at;
  std::vector<int64_t> bytes;
  int64_t room = 0;
};

Places RandomPlaces(const Scale& scale, int64_t count, Random* random) {
  Places places;
  for (int64_t i = 0; i < count; ++i) {
    places.room += Below(random, 2) == 0 ? 0 : Below(random, 40);
    const int64_t bytes = gpu_support::RandomLength(scale.longest, random);
    places.at.push_back(places.room);
    places.bytes.push_back(bytes);
    places.room += bytes;
  }
  places.room += 64;
  return places;
}

void CheckMoves(const Device& device, const Scale& scale, Random* random) {
  const int64_t count = 1 + Below(random, 200);
  const Places places = RandomPlaces(scale, count, random);
  const std::vector<std::byte> before = RandomBytes(static_cast<size_t>(places.room), random);
  const std::vector<std::byte> from = RandomBytes(static_cast<size_t>(scale.longest) + 8192 * 4, random);
  const Memory dst(&device, before.size());
  const Memory src(&device, from.size());
  dst.Fill(before);
  src.Fill(from);
  MoveLine line;
  std::vector<std::byte> expected = before;
  for (size_t i = 0; i < places.at.size(); ++i) {
    const int64_t start = Below(random, static_cast<int64_t>(from.size()) - places.bytes[i] + 1);
    line.Add(dst.data() + places.at[i], src.data() + start, places.bytes[i]);
    std::memcpy(expected.data() + places.at[i], from.data() + start, static_cast<size_t>(places.bytes[i]));
  }
  const DeviceList list(&device, line.moves);
  const int32_t blocks = RandomBlocks(device, line.end, random);
  const Context context(std::to_string(count) + " runs, " + std::to_string(blocks) + " blocks");
  const auto moves = static_cast<int64_t>(line.moves.size());
  device.Must(device.driver().MoveRows(list.data(), moves, line.end, blocks, device.stream()), "move rows");
  device.Wait();
  CHECK_EQ(FirstDifference(dst.Read(), expected), -1);
  if (moves <= kernels::kFewMoves) {
    dst.Fill(before);
    device.Must(device.driver().MoveFew(line.moves.data(), moves, line.end, blocks, device.stream()),
                "move a few rows");
    device.Wait();
    CHECK_EQ(FirstDifference(dst.Read(), expected), -1);
  }
  CHECK_EQ(FirstDifference(src.Read(), from), -1);
}

void TestKernels(const Device& device, const Scale& scale) {
  Random random(1);
  for (int trial = 0; trial < scale.trials; ++trial) {
    const Context context("trial " + std::to_string(trial));
    CheckMoves(device, scale, &random);
  }
}

void TestEmptyLists(const Device& device) {
  CHECK_EQ(device.driver().MoveRows(nullptr, 0, 0, 1, device.stream()), 0);
  CHECK_EQ(device.driver().MoveFew(nullptr, 0, 0, 1, device.stream()), 0);
  CHECK_EQ(device.driver().GatherRows(nullptr, 0, 0, 16, 1, device.stream()), 0);
  const kernels::IndexedSum nothing = {};
  CHECK_EQ(device.driver().SumIndexed({ElementKind::kF32, ElementKind::kF32}, &nothing, 1, device.stream()), 0);
  device.Wait();
}

// Copies of a chain over two streams that wait for each other, each link before the one it waits for has begun: only
// order makes the last one the first.
void TestOrder(const Device& device, const Scale& scale) {
  const kernels::Driver& driver = device.driver();
  constexpr int kLinks = 20;
  const auto bytes = static_cast<size_t>(scale.longest);
  kernels::Stream other = nullptr;
  kernels::Event event = nullptr;
  device.Must(driver.CreateStream(&other), "make a stream");
  device.Must(driver.CreateEvent(&event), "make an event");
  Random random(2);
  const std::vector<std::byte> first = RandomBytes(bytes, &random);
  const Memory chain(&device, bytes * (kLinks + 1));
  device.Copy(chain.data(), first.data(), bytes);
  for (int link = 0; link < kLinks; ++link) {
    kernels::Stream now = link % 2 == 0 ? other : device.stream();
    device.Must(driver.RecordEvent(event, link % 2 == 0 ? device.stream() : other), "record an event");
    device.Must(driver.WaitEvent(now, event), "wait for an event");
    std::byte* const from = chain.data() + static_cast<size_t>(link) * bytes;
    device.Must(driver.Copy(from + bytes, from, bytes, now), "copy");
  }
  device.Must(driver.RecordEvent(event, device.stream()), "record an event");
  device.Must(driver.SynchronizeEvent(event), "wait for an event");
  int reached = 0;
  CHECK_EQ(driver.QueryEvent(event, &reached), 0);
  CHECK_EQ(reached, 1);
  const std::vector<std::byte> all = chain.Read();
  CHECK_EQ(std::memcmp(all.data() + kLinks * bytes, first.data(), bytes), 0);
  device.Must(driver.SynchronizeStream(other), "wait for the stream");
  device.Must(driver.DestroyEvent(event), "destroy an event");
  device.Must(driver.DestroyStream(other), "destroy a stream");
}

// The host is called when what was put on the stream before has happened, and not earlier. What comes after it waits.
void TestCallHost(const Device& device) {
  const Memory there(&device, sizeof(int));
  const Memory here(&device, sizeof(int), Memory::Place::kHost);
  struct Seen {
    const Memory* from;
    int value;
    std::atomic<bool> let_go;
  } seen = {&here, 0, {false}};
  const int wanted = 42;
  std::memset(here.data(), 0, sizeof(int));
  device.Copy(there.data(), &wanted, sizeof(int));
  device.Copy(here.data(), there.data(), sizeof(int));
  const auto look = [](void* data) {
    auto* const own = static_cast<Seen*>(data);
    std::memcpy(&own->value, own->from->data(), sizeof(int));
    while (!own->let_go) std::this_thread::yield();
  };
  const kernels::Driver& driver = device.driver();
  kernels::Event event = nullptr;
  device.Must(driver.CreateEvent(&event), "make an event");
  CHECK_EQ(driver.CallHost(device.stream(), look, &seen), 0);
  device.Must(driver.RecordEvent(event, device.stream()), "record an event");
  int reached = 1;
  CHECK_EQ(driver.QueryEvent(event, &reached), 0);
  CHECK_EQ(reached, 0);
  seen.let_go = true;
  device.Wait();
  CHECK_EQ(seen.value, wanted);
  device.Must(driver.DestroyEvent(event), "destroy an event");
}

// As much of a table as it says is in use; nonsense gives what fits.
int64_t BytesInUse(int64_t bytes, int64_t head, int64_t each, int32_t count) {
  return std::min(bytes, head + std::max(count, 0) * each);
}

// Pieces of any length, anywhere, and tables that say how much of them is in use.
void TestFetch(const Device& device, const Scale& scale) {
  Random random(5);
  constexpr int32_t kCounts[] = {-1, 0, 1, 7, 1000, 2'000'000'000};
  for (int trial = 0; trial < 4 * scale.trials; ++trial) {
    kernels::FetchList list;
    list.count = 1 + static_cast<int32_t>(Below(&random, kernels::kMaxFetched));
    const int64_t room = 8192 * list.count;
    std::vector<std::byte> from = RandomBytes(static_cast<size_t>(room), &random);
    std::vector<std::byte> wanted = RandomBytes(static_cast<size_t>(room), &random);
    const Memory there(&device, static_cast<size_t>(room));
    const Memory here(&device, static_cast<size_t>(room), Memory::Place::kHost);
    std::memcpy(here.data(), wanted.data(), wanted.size());
    for (int32_t i = 0; i < list.count; ++i) {
      const bool table = Below(&random, 3) == 0;
      constexpr int64_t kUnits[] = {4, 16, 1};
      const int64_t unit = kUnits[Below(&random, table ? 2 : 3)];
      const int64_t source = 8192 * i + unit * Below(&random, 20);
      const int64_t to = 8192 * i + unit * Below(&random, 20);
      const int64_t bytes = table ? 4 * (4 + Below(&random, 1960)) : unit * Below(&random, 7800 / unit);
      list.entries[i] = {here.data() + to, there.data() + source, bytes};
      int64_t used = bytes;
      if (table) {
        const int32_t count = kCounts[Below(&random, std::size(kCounts))];
        std::memcpy(&from[static_cast<size_t>(source + 12)], &count, sizeof(count));
        list.entries[i].head = 16;
        list.entries[i].each = 40;
        list.entries[i].count_at = 12;
        used = BytesInUse(bytes, 16, 40, count);
      }
      std::copy_n(from.begin() + source, used, wanted.begin() + to);
    }
    there.Fill(from);
    CHECK_EQ(device.driver().Fetch(&list, 1 + static_cast<int32_t>(Below(&random, 4)), device.stream()), 0);
    device.Wait();
    CHECK_EQ(std::memcmp(here.data(), wanted.data(), wanted.size()), 0);
  }
  const kernels::FetchList nothing{};
  CHECK_EQ(device.driver().Fetch(&nothing, 1, device.stream()), 0);
  device.Wait();
}

void TestDevices(const Device& device) {
  const kernels::Driver& driver = device.driver();
  int count = 0;
  int current = -1;
  int possible = 0;
  CHECK_EQ(driver.CountDevices(&count), 0);
  CHECK_GE(count, 1);
  CHECK_EQ(driver.GetDevice(&current), 0);
  CHECK_EQ(current, 0);
  CHECK_EQ(driver.EnablePeer(0, &possible), 0);
  CHECK_EQ(possible, 1);
  CHECK_GE(device.max_blocks(), 1);
  CHECK_EQ(driver.LoadKernels(), 0);
}

// What is refused is an error with words, and leaves none behind for the next call to find.
void TestErrors(const Device& device) {
  const kernels::Driver& driver = device.driver();
  const int no_device = driver.SetDevice(1'000'000);
  CHECK_NE(no_device, 0);
  CHECK(std::strlen(driver.ErrorText(no_device)) > 0);
  const kernels::IndexedSum nothing = {};
  for (const kernels::SumTypes types : {kernels::SumTypes{ElementKind::kOpaque, ElementKind::kF32},
                                        {ElementKind::kF16, ElementKind::kBF16},
                                        {ElementKind::kBF16, ElementKind::kF64},
                                        {ElementKind::kF32, ElementKind::kF64},
                                        {ElementKind::kF64, ElementKind::kF32}}) {
    CHECK_NE(driver.SumIndexed(types, &nothing, 1, device.stream()), 0);
  }
  Random random(3);
  CheckMoves(device, {1, 1000}, &random);
}

}  // namespace

int Main(bool small, const std::string& library) {
  const Scale scale = small ? Scale{6, 30'000} : Scale{20, 300'000};
  const Device device(library);
  std::printf("%s, at most %d blocks\n", device.driver().platform, device.max_blocks());
  TestDevices(device);
  TestKernels(device, scale);
  TestIndexedKernels(device, 8 * scale.trials);
  TestEmptyLists(device);
  TestOrder(device, scale);
  TestCallHost(device);
  TestFetch(device, scale);
  TestErrors(device);
  return Finish("gpu_driver_test");
}

}  // namespace fastjax::test

int main(int argc, char** argv) {
  bool small = false;
  std::string library;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--small") {
      small = true;
    } else if (argument.substr(0, 1) == "-" || !library.empty()) {
      std::fprintf(stderr, "usage: gpu_driver_test [--small] [LIBRARY]\n");
      return 2;
    } else {
      library = argument;
    }
  }
  return fastjax::test::Main(small, library);
}
