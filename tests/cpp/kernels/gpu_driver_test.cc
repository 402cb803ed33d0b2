// A GPU's driver: its kernels move and sum what the host's do, whatever the alignments, and touch nothing beside it;
// its streams and events keep order, and what it refuses it says.
//
//   gpu_driver_test [--small] [LIBRARY]
//
// Without a library, the emulated driver. --small is for compute-sanitizer, under which every access takes its time.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "indexed_kernels.h"
#include "kernels/copy.h"
#include "support/check.h"
#include "support/gpu_driver/device.h"
#include "support/gpu_driver/lists.h"
#include "support/sums.h"

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
using kernels::Landing;

// How much of everything.
struct Scale {
  int trials;
  int64_t longest;  // run
};

// Short ones, those around what kernels cut at, and long ones.
int64_t RandomLength(const Scale& scale, Random* random) {
  constexpr int64_t kCuts[] = {16, 32, 512, 2048, kernels::kTileBytes, 3 * kernels::kTileBytes};
  switch (Below(random, 8)) {
    case 0:
      return std::max<int64_t>(1, kCuts[Below(random, std::size(kCuts))] + Below(random, 65) - 32);
    case 1:
      return 1 + Below(random, scale.longest);
    case 2:
      return 1 + Below(random, 1000);
    default:
      return 1 + Below(random, 64);
  }
}

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

Places RandomPlaces(const Scale& scale, int64_t count, int64_t element, Random* random) {
  Places places;
  for (int64_t i = 0; i < count; ++i) {
    places.room += Below(random, 2) == 0 ? 0 : Below(random, 40);
    const int64_t bytes = (RandomLength(scale, random) + element - 1) / element * element;
    places.at.push_back(places.room);
    places.bytes.push_back(bytes);
    places.room += bytes;
  }
  places.room += 64;
  return places;
}

void CheckMoves(const Device& device, const Scale& scale, Random* random) {
  const int64_t count = 1 + Below(random, 200);
  const Places places = RandomPlaces(scale, count, 1, random);
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
  device.Must(device.driver().MoveRows(list.data(), moves, line.end, nullptr, blocks, device.stream()), "move rows");
  device.Wait();
  CHECK_EQ(FirstDifference(dst.Read(), expected), -1);
  if (moves <= kernels::kFewMoves) {
    dst.Fill(before);
    device.Must(device.driver().MoveFew(line.moves.data(), moves, line.end, nullptr, blocks, device.stream()),
                "move a few rows");
    device.Wait();
    CHECK_EQ(FirstDifference(dst.Read(), expected), -1);
  }
  CHECK_EQ(FirstDifference(src.Read(), from), -1);
}

// Equal but for NaNs, whose sign and payload are the processor's: those are made alike.
template <typename Bits>
void UnifyNaNs(std::vector<std::byte>* memory, int64_t at, int64_t bytes, Bits infinity) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  const auto nan = static_cast<Bits>(~kSign);
  for (int64_t i = at; i < at + bytes; i += static_cast<int64_t>(sizeof(Bits))) {
    Bits bits;
    std::memcpy(&bits, memory->data() + i, sizeof(Bits));
    if (static_cast<Bits>(bits & nan) > infinity) std::memcpy(memory->data() + i, &nan, sizeof(Bits));
  }
}

void UnifyNaNs(ElementKind kind, std::vector<std::byte>* memory, int64_t at, int64_t bytes) {
  switch (kind) {
    case ElementKind::kF16:
      return UnifyNaNs<uint16_t>(memory, at, bytes, 0x7C00);
    case ElementKind::kBF16:
      return UnifyNaNs<uint16_t>(memory, at, bytes, 0x7F80);
    case ElementKind::kF32:
      return UnifyNaNs<uint32_t>(memory, at, bytes, 0x7F800000U);
    case ElementKind::kF64:
      return UnifyNaNs<uint64_t>(memory, at, bytes, uint64_t{0x7FF0000000000000});
    case ElementKind::kOpaque:
      return;
  }
}

// Landings and what they are the sums of.
struct Sums {
  std::vector<Landing> landings;
  std::vector<const std::byte*> sources;
  int64_t end = 0;
};

void CheckSums(const Device& device, const Scale& scale, ElementKind kind, Random* random) {
  const auto element = static_cast<int64_t>(kernels::ElementBytes(kind));
  const int64_t count = 1 + Below(random, 60);
  const Places places = RandomPlaces(scale, count, element, random);
  const std::vector<std::byte> before = RandomBytes(static_cast<size_t>(places.room), random);
  const std::vector<std::byte> from = RandomBytes(static_cast<size_t>(scale.longest) + 8192 * 4, random);
  const Memory dst(&device, before.size());
  const Memory src(&device, from.size());
  dst.Fill(before);
  src.Fill(from);
  Sums sums;
  std::vector<std::byte> expected = before;
  for (size_t i = 0; i < places.at.size(); ++i) {
    const int64_t bytes = places.bytes[i];
    const auto sources = static_cast<int32_t>(Below(random, 6));
    sums.end = (sums.end + kernels::kAlignment - 1) / kernels::kAlignment * kernels::kAlignment;
    sums.landings.push_back(
        {dst.data() + places.at[i], sums.end, bytes, static_cast<int32_t>(sums.sources.size()), sources});
    sums.end += bytes;
    std::byte* const to = expected.data() + places.at[i];
    std::memset(to, 0, static_cast<size_t>(bytes));
    for (int32_t s = 0; s < sources; ++s) {
      const int64_t start = Below(random, static_cast<int64_t>(from.size()) - bytes + 1);
      sums.sources.push_back(src.data() + start);
      AddTo(to, from.data() + start, static_cast<size_t>(bytes), kind);
    }
  }
  const DeviceList landings(&device, sums.landings);
  const DeviceList sources(&device, sums.sources);
  const int32_t blocks = RandomBlocks(device, sums.end, random);
  const Context context("kind " + std::to_string(static_cast<int>(kind)) + ", " + std::to_string(count) +
                        " landings, " + std::to_string(blocks) + " blocks");
  device.Must(device.driver().SumRows(kind, landings.data(), sources.data(), static_cast<int64_t>(sums.landings.size()),
                                      sums.end, nullptr, blocks, device.stream()),
              "sum rows");
  device.Wait();
  std::vector<std::byte> found = dst.Read();
  for (size_t i = 0; i < places.at.size(); ++i) {
    UnifyNaNs(kind, &found, places.at[i], places.bytes[i]);
    UnifyNaNs(kind, &expected, places.at[i], places.bytes[i]);
  }
  CHECK_EQ(FirstDifference(found, expected), -1);
  CHECK_EQ(FirstDifference(src.Read(), from), -1);
}

void TestKernels(const Device& device, const Scale& scale) {
  Random random(1);
  for (int trial = 0; trial < scale.trials; ++trial) {
    const Context context("trial " + std::to_string(trial));
    CheckMoves(device, scale, &random);
    for (const ElementKind kind : {ElementKind::kF16, ElementKind::kBF16, ElementKind::kF32, ElementKind::kF64}) {
      CheckSums(device, scale, kind, &random);
    }
  }
}

void TestEmptyLists(const Device& device) {
  CHECK_EQ(device.driver().MoveRows(nullptr, 0, 0, nullptr, 1, device.stream()), 0);
  CHECK_EQ(device.driver().MoveFew(nullptr, 0, 0, nullptr, 1, device.stream()), 0);
  CHECK_EQ(device.driver().SumRows(ElementKind::kF32, nullptr, nullptr, 0, 0, nullptr, 1, device.stream()), 0);
  CHECK_EQ(device.driver().GatherRows(nullptr, 0, 0, 16, nullptr, 1, device.stream()), 0);
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

// The host is called when what was put on the stream before has happened, and not earlier.
void TestCallHost(const Device& device) {
  const Memory there(&device, sizeof(int));
  const Memory here(&device, sizeof(int), Memory::Place::kHost);
  struct Seen {
    const Memory* from;
    int value;
  } seen = {&here, 0};
  const int wanted = 42;
  std::memset(here.data(), 0, sizeof(int));
  device.Copy(there.data(), &wanted, sizeof(int));
  device.Copy(here.data(), there.data(), sizeof(int));
  const auto look = [](void* data) {
    auto* const own = static_cast<Seen*>(data);
    std::memcpy(&own->value, own->from->data(), sizeof(int));
  };
  CHECK_EQ(device.driver().CallHost(device.stream(), look, &seen), 0);
  device.Wait();
  CHECK_EQ(seen.value, wanted);
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
      list.pieces[i] = {here.data() + to, there.data() + source, bytes};
      int64_t used = bytes;
      if (table) {
        const int32_t count = kCounts[Below(&random, std::size(kCounts))];
        std::memcpy(&from[static_cast<size_t>(source + 12)], &count, sizeof(count));
        list.pieces[i].head = 16;
        list.pieces[i].each = 40;
        list.pieces[i].count_at = 12;
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

// A page of the host's, as the page of two devices. The first is this one; the host plays the second. Where the host's
// memory cannot be registered, this is said, and the page is pinned memory of the driver's.
class BarrierPage {
 public:
  BarrierPage(const Device* device, const kernels::Driver& driver) : device_(device) {
    void* there = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    lines_ = static_cast<kernels::BarrierLine*>(there);
    const int refused = driver.RegisterHost(lines_, kBytes);
    if (refused == 0) {
      device->Must(driver.FindRegistered(&there, lines_), "find memory of the host");
    } else {
      std::printf("memory of the host cannot be registered: %s (%d)\n", driver.ErrorText(refused), refused);
      munmap(lines_, kBytes);
      pinned_ = std::make_unique<Memory>(device, kBytes, Memory::Place::kHost);
      there = pinned_->data();
      std::memset(there, 0, kBytes);
      lines_ = static_cast<kernels::BarrierLine*>(there);
    }
    barrier_ = {static_cast<kernels::BarrierLine*>(there), 2, 0, 0, 1, 0, false, nullptr};
  }
  ~BarrierPage() {
    if (!registered()) return;
    device_->Must(device_->driver().UnregisterHost(lines_), "give back memory of the host");
    munmap(lines_, kBytes);
  }
  BarrierPage(const BarrierPage&) = delete;
  BarrierPage& operator=(const BarrierPage&) = delete;

  bool registered() const { return pinned_ == nullptr; }
  void Close() { kernels::StoreShared(&lines_[0].word, 1); }
  void LetGo() { kernels::StoreShared(&lines_[kernels::LetGoLine(0)].word, 1); }
  void Tell(uint64_t step) { kernels::StoreShared(&lines_[kernels::StepLine(1)].word, step); }
  uint64_t Told() const { return kernels::LoadShared(&lines_[kernels::StepLine(0)].word); }
  void Pass(uint64_t step, bool last, uint64_t* gate) {
    barrier_.step = step;
    barrier_.last = last;
    barrier_.gate = gate;
    CHECK_EQ(device_->driver().PassBarrier(&barrier_, device_->stream()), 0);
  }

 private:
  static constexpr size_t kBytes = 65'536;  // whatever the size of a page is
  const Device* const device_;
  kernels::BarrierLine* lines_ = nullptr;
  std::unique_ptr<Memory> pinned_;
  kernels::Barrier barrier_{};
};

uint64_t WordAt(const Memory& memory) {
  uint64_t word = 0;
  std::memcpy(&word, memory.Read().data(), sizeof(word));
  return word;
}

// `waits`: also such as keep the stream waiting, which tools that launch one kernel at a time do not bear.
void CheckBarriers(const Device& device, const kernels::Driver& driver, bool waits) {
  BarrierPage page(&device, driver);
  const Memory gate(&device, sizeof(uint64_t));
  auto* const word = reinterpret_cast<uint64_t*>(gate.data());
  gate.Fill(std::vector<std::byte>(sizeof(uint64_t), std::byte{1}));
  page.Tell(5);
  page.Pass(5, false, word);
  device.Wait();
  CHECK_EQ(page.Told(), 5U);
  CHECK_EQ(WordAt(gate), 0U);
  if (waits) {
    kernels::Event event = nullptr;
    int reached = 1;
    device.Must(driver.CreateEvent(&event), "make an event");
    page.Pass(6, false, nullptr);
    device.Must(driver.RecordEvent(event, device.stream()), "record an event");
    CHECK_EQ(driver.QueryEvent(event, &reached), 0);
    CHECK_EQ(reached, 0);
    page.Tell(7);
    device.Wait();
    page.Pass(8, false, word);
    device.Must(driver.RecordEvent(event, device.stream()), "record an event");
    // The other may come, or not. A kernel that fails tells nothing.
    while (page.Told() < 8 && driver.QueryEvent(event, &reached) == 0) std::this_thread::yield();
    page.Close();
    device.Wait();
    CHECK_EQ(WordAt(gate), 1U);  // nobody came: nobody's memory is to be touched
    page.Pass(9, true, nullptr);
    device.Must(driver.RecordEvent(event, device.stream()), "record an event");
    CHECK_EQ(driver.QueryEvent(event, &reached), 0);
    CHECK_EQ(reached, 0);  // closed, but not let go
    page.LetGo();
    device.Wait();
    device.Must(driver.DestroyEvent(event), "destroy an event");
  }
  page.Close();
  page.Pass(10, false, word);
  Random random(4);
  const std::vector<std::byte> before = RandomBytes(64, &random);
  const std::vector<std::byte> other = RandomBytes(64, &random);
  const Memory from(&device, 64);
  const Memory to(&device, 64);
  from.Fill(other);
  to.Fill(before);
  const DeviceList moves(&device, std::vector<kernels::Move>{{to.data(), from.data(), 0, 64}});
  CHECK_EQ(driver.MoveRows(moves.data(), 1, 64, word, 1, device.stream()), 0);
  device.Wait();
  CHECK_EQ(page.Told(), 10U);
  CHECK_EQ(WordAt(gate), 1U);
  CHECK(to.Read() == before);
  CHECK_EQ(driver.MoveRows(moves.data(), 1, 64, nullptr, 1, device.stream()), 0);
  device.Wait();
  CHECK(to.Read() == other);
}

// Also where the host's memory is refused.
void TestBarriers(const Device& device, bool waits) {
  const kernels::Driver& driver = device.driver();
  kernels::Driver refusing = driver;
  refusing.RegisterHost = [](void*, size_t) { return 1; };
  CheckBarriers(device, driver, waits);
  CheckBarriers(device, refusing, waits);
}

// Only another process may open what is exported here; whether that works, tests of two processes tell.
void TestAllocations(const Device& device) {
  const kernels::Driver& driver = device.driver();
  const Memory one(&device, 1 << 20);
  const Memory two(&device, 1 << 20);
  kernels::Allocation first;
  kernels::Allocation again;
  kernels::Allocation second;
  CHECK_EQ(driver.FindAllocation(&first, one.data()), 0);
  CHECK_EQ(driver.FindAllocation(&again, one.data() + 12'345), 0);
  CHECK_EQ(driver.FindAllocation(&second, two.data()), 0);
  CHECK(first.base <= one.data() && one.data() + one.bytes() <= first.base + first.bytes);
  CHECK(again.base == first.base && again.bytes == first.bytes);
  CHECK_EQ(again.id, first.id);
  CHECK(second.base != first.base || second.id == first.id);
  kernels::MemoryHandle handle;
  const int exported = driver.ExportMemory(&handle, first.base);
  if (exported != 0) std::printf("memory cannot be shared: %s\n", driver.ErrorText(exported));
  CHECK_NE(driver.FindAllocation(&again, &handle), 0);  // of the host
  kernels::MemoryHandle nonsense;
  void* opened = nullptr;
  CHECK_NE(driver.OpenMemory(&opened, &nonsense), 0);
  CHECK_NE(driver.CloseMemory(&handle), 0);
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
  CHECK_NE(driver.SumRows(ElementKind::kOpaque, nullptr, nullptr, 1, 16, nullptr, 1, device.stream()), 0);
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
  TestBarriers(device, !small);
  TestAllocations(device);
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
