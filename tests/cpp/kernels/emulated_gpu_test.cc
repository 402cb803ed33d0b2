// The emulated GPU, through the driver's table, does what CUDA says of streams, events and errors: code that is right
// on it is right on a GPU. What any driver does is checked by gpu_driver_test.
#include "kernels/emulated_gpu.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/driver.h"
#include "support/check.h"

namespace fastjax::test {
namespace {

using kernels::Driver;
using kernels::Event;
using kernels::Move;
using kernels::Stream;

const Driver& Gpu() { return *fastjax_gpu_driver(); }

#define CHECK_OK(call) CHECK_EQ((call), 0)

// Opened once, by anyone.
struct Gate {
  void Open() { opened.set_value(); }
  void Pass() const { open.wait(); }

  std::promise<void> opened;
  std::shared_future<void> open = opened.get_future().share();
};

Stream NewStream() {
  Stream stream = nullptr;
  CHECK_OK(Gpu().CreateStream(&stream));
  return stream;
}

Event NewEvent() {
  Event event = nullptr;
  CHECK_OK(Gpu().CreateEvent(&event));
  return event;
}

void Then(Stream stream, std::function<void()> work) {
  auto own = std::make_unique<std::function<void()>>(std::move(work));
  const auto run = [](void* data) {
    const std::unique_ptr<std::function<void()>> taken(static_cast<std::function<void()>*>(data));
    (*taken)();
  };
  CHECK_OK(Gpu().CallHost(stream, run, own.release()));
}

bool IsReached(Event event) {
  int reached = -1;
  CHECK_OK(Gpu().QueryEvent(event, &reached));
  return reached == 1;
}

// With a number of streams, destroyed with it.
class Streams {
 public:
  explicit Streams(size_t count) {
    while (streams_.size() < count) streams_.push_back(NewStream());
  }
  ~Streams() {
    for (const Stream stream : streams_) {
      CHECK_OK(Gpu().SynchronizeStream(stream));
      CHECK_OK(Gpu().DestroyStream(stream));
    }
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  Stream operator[](size_t i) const { return streams_[i]; }

 private:
  std::vector<Stream> streams_;
};

TEST(Devices) {
  CHECK_EQ(Gpu().version, kernels::kDriverVersion);
  CHECK_EQ(std::string(Gpu().platform), "emulated");
  int devices = 0;
  CHECK_OK(Gpu().CountDevices(&devices));
  CHECK_EQ(devices, kernels::emulatedDevices);
  int device = 7;
  CHECK_OK(Gpu().GetDevice(&device));
  CHECK_EQ(device, kernels::kNoDevice);
  for (const int bad : {-2, devices}) {
    int count = 0;
    CHECK_EQ(Gpu().SetDevice(bad), kernels::emulatedErrorInvalidDevice);
    CHECK_EQ(Gpu().CountMultiprocessors(&count, bad), kernels::emulatedErrorInvalidDevice);
  }
  CHECK_OK(Gpu().SetDevice(3));
  CHECK_OK(Gpu().GetDevice(&device));
  CHECK_EQ(device, 3);
  std::thread([] {
    int of_thread = 7;
    CHECK_OK(Gpu().GetDevice(&of_thread));
    CHECK_EQ(of_thread, kernels::kNoDevice);
    // Device 0 comes by itself, as with CUDA, and that is noted.
    const int64_t strays = kernels::emulatedStrays();
    CHECK_OK(Gpu().DestroyEvent(NewEvent()));
    CHECK_OK(Gpu().GetDevice(&of_thread));
    CHECK_EQ(of_thread, 0);
    CHECK_EQ(kernels::emulatedStrays().load(), strays + 1);
    CHECK_OK(Gpu().SetDevice(kernels::kNoDevice));
    CHECK_OK(Gpu().GetDevice(&of_thread));
    CHECK_EQ(of_thread, kernels::kNoDevice);
  }).join();
  CHECK_OK(Gpu().SetDevice(0));
  int multiprocessors = 0;
  CHECK_OK(Gpu().CountMultiprocessors(&multiprocessors, 0));
  CHECK_GT(multiprocessors, 0);
}

// Errors have CUDA's numbers and words.
TEST(ErrorTexts) {
  for (const auto& [code, text] :
       std::vector<std::pair<int, std::string>>{{0, "no error"},
                                                {1, "invalid argument"},
                                                {2, "out of memory"},
                                                {9, "invalid configuration argument"},
                                                {101, "invalid device ordinal"},
                                                {400, "invalid resource handle"},
                                                {600, "device not ready"},
                                                {700, "an illegal memory access was encountered"},
                                                {704, "peer access is already enabled"},
                                                {12345, "unknown error"}}) {
    CHECK_EQ(Gpu().ErrorText(code), text);
  }
}

TEST(Peers) {
  for (int time = 0; time < 2; ++time) {
    for (const int peer : {0, 1, 15}) {
      int possible = -1;
      CHECK_OK(Gpu().EnablePeer(peer, &possible));
      CHECK_EQ(possible, 1);
    }
  }
  for (const int bad : {-1, 16}) {
    int possible = -1;
    CHECK_EQ(Gpu().EnablePeer(bad, &possible), kernels::emulatedErrorInvalidDevice);
    CHECK_EQ(possible, 0);
  }
}

// An event is reached although the stream has more to do, and a stream is done when all of its work is.
TEST(Synchronize) {
  const Streams streams(1);
  const Event event = NewEvent();
  Gate gates[2];
  bool done = false;
  Then(streams[0], [&] { gates[0].Pass(); });
  CHECK_OK(Gpu().RecordEvent(event, streams[0]));
  Then(streams[0], [&] {
    gates[1].Pass();
    done = true;
  });
  gates[0].Open();
  CHECK_OK(Gpu().SynchronizeEvent(event));
  CHECK(IsReached(event));
  gates[1].Open();
  CHECK_OK(Gpu().SynchronizeStream(streams[0]));
  CHECK(done);
  CHECK_OK(Gpu().DestroyEvent(event));
}

TEST(EventNeverRecorded) {
  const Streams streams(1);
  const Event event = NewEvent();
  CHECK(IsReached(event));
  CHECK_OK(Gpu().SynchronizeEvent(event));
  CHECK_OK(Gpu().WaitEvent(streams[0], event));
  // A record after the wait is not what was waited for, although the wait has not run yet: else, a deadlock.
  CHECK_OK(Gpu().RecordEvent(event, streams[0]));
  CHECK_OK(Gpu().SynchronizeEvent(event));
  CHECK_OK(Gpu().DestroyEvent(event));
}

// A wait is for the record that was the last when it was made: neither for a later one, whose stream goes on only after
// the waiting one has, nor content with a later one that is reached first.
TEST(RecordedAgain) {
  const Streams streams(3);
  const Event event = NewEvent();
  const Event after = NewEvent();
  Gate first;
  Gate second;
  bool first_done = false;
  bool first_seen = false;
  Then(streams[0], [&] {
    first.Pass();
    first_done = true;
  });
  CHECK_OK(Gpu().RecordEvent(event, streams[0]));
  CHECK_OK(Gpu().WaitEvent(streams[1], event));
  Then(streams[1], [&] { first_seen = first_done; });
  CHECK_OK(Gpu().RecordEvent(after, streams[1]));
  CHECK_OK(Gpu().RecordEvent(event, streams[2]));  // reached at once
  CHECK_OK(Gpu().SynchronizeEvent(event));
  CHECK(IsReached(event));
  CHECK(!IsReached(after));
  Then(streams[2], [&] { second.Pass(); });
  CHECK_OK(Gpu().RecordEvent(event, streams[2]));
  CHECK(!IsReached(event));
  first.Open();
  CHECK_OK(Gpu().SynchronizeEvent(after));  // although the last record is not reached
  CHECK(first_seen);
  second.Open();
  CHECK_OK(Gpu().SynchronizeEvent(event));
  CHECK_OK(Gpu().DestroyEvent(event));
  CHECK_OK(Gpu().DestroyEvent(after));
}

// Streams wait for each other in turns, which works only if they run at once.
TEST(StreamsRunAtOnce) {
  const Streams streams(2);
  constexpr size_t kTurns = 50;
  std::array<Event, kTurns> events{};
  for (Event& event : events) event = NewEvent();
  int turns = 0;
  for (size_t i = 0; i < kTurns; ++i) {
    const Stream stream = streams[i % 2];
    if (i > 0) CHECK_OK(Gpu().WaitEvent(stream, events[i - 1]));
    Then(stream, [&turns, i] { turns += turns == static_cast<int>(i) ? 1 : 0; });
    CHECK_OK(Gpu().RecordEvent(events[i], stream));
  }
  CHECK_OK(Gpu().SynchronizeEvent(events.back()));
  CHECK_EQ(turns, static_cast<int>(kTurns));
  Gate here;
  Gate there;
  Then(streams[0], [&] {
    here.Open();
    there.Pass();
  });
  Then(streams[1], [&] {
    there.Open();
    here.Pass();
  });
  for (size_t i = 0; i < 2; ++i) CHECK_OK(Gpu().SynchronizeStream(streams[i]));
  for (const Event event : events) CHECK_OK(Gpu().DestroyEvent(event));
}

// Both are gone at once for the caller, and what was queued is done all the same.
TEST(DestroyWhileQueued) {
  Gate gate;
  Gate done;
  int value = 0;
  int seen = 0;
  const Stream before = NewStream();
  const Stream behind = NewStream();
  const Event event = NewEvent();
  Then(before, [&] {
    gate.Pass();
    value = 7;
  });
  CHECK_OK(Gpu().RecordEvent(event, before));
  CHECK_OK(Gpu().WaitEvent(behind, event));
  Then(behind, [&] {
    seen = value;
    done.Open();
  });
  CHECK_OK(Gpu().DestroyEvent(event));
  CHECK_OK(Gpu().DestroyStream(before));
  CHECK_OK(Gpu().DestroyStream(behind));
  gate.Open();  // if destroying waited, this would never be reached
  done.Pass();
  CHECK_EQ(seen, 7);
}

// What CUDA refuses because handles are of another device.
TEST(OtherDevice) {
  const Streams streams(1);
  const Event event = NewEvent();
  CHECK_OK(Gpu().SetDevice(1));
  const Stream other = NewStream();
  const Event other_event = NewEvent();
  const std::byte src{5};
  std::byte dst{0};
  const Move move = {&dst, &src, kernels::NextBegin(0, &dst), 1};
  CHECK_EQ(Gpu().RecordEvent(event, other), kernels::emulatedErrorInvalidResourceHandle);
  CHECK_EQ(Gpu().MoveRows(&move, 1, move.begin + 1, 1, streams[0]), kernels::emulatedErrorInvalidResourceHandle);
  CHECK_OK(Gpu().SynchronizeStream(streams[0]));
  CHECK(dst == std::byte{0});
  // But these are allowed: waits across devices, copies and records on any stream.
  CHECK_OK(Gpu().Copy(&dst, &src, 1, streams[0]));
  CHECK_OK(Gpu().RecordEvent(event, streams[0]));
  CHECK_OK(Gpu().WaitEvent(other, event));
  CHECK_OK(Gpu().RecordEvent(other_event, other));
  CHECK_OK(Gpu().SetDevice(0));
  CHECK_OK(Gpu().SynchronizeEvent(other_event));
  CHECK(dst == src);
  CHECK_OK(Gpu().DestroyStream(other));
  CHECK_OK(Gpu().DestroyEvent(event));
  CHECK_OK(Gpu().DestroyEvent(other_event));
}

// A launch takes its list along: the caller's is free again, whenever the stream comes to it.
TEST(ListsByValue) {
  const Streams streams(1);
  const std::vector<std::byte> src(kernels::kFewMoves, std::byte{5});
  std::vector<std::byte> dst(src.size());
  std::vector<Move> moves;
  int64_t end = 0;
  for (size_t i = 0; i < src.size(); ++i) {
    moves.push_back({&dst[i], &src[i], kernels::NextBegin(end, &dst[i]), 1});
    end = moves.back().begin + 1;
  }
  const int64_t count = kernels::kFewMoves;
  Gate gate;
  Then(streams[0], [&] { gate.Pass(); });
  CHECK_OK(Gpu().MoveFew(moves.data(), count, end, 3, streams[0]));
  moves.assign(moves.size(), {nullptr, nullptr, 0, 1 << 20});
  gate.Open();
  CHECK_OK(Gpu().SynchronizeStream(streams[0]));
  CHECK(dst == src);
}

// Launches every kernel, with a row to move or to sum; returns what each launch says.
std::vector<int> LaunchAll(int32_t blocks, Stream stream) {
  using kernels::ElementKind;
  static const std::byte src[8] = {std::byte{5}};
  static std::byte dst[8];
  static const int32_t zeros[2] = {};
  static const kernels::Slice slice = {};
  static const Move move = {dst, src, kernels::NextBegin(0, dst), 1};
  static const kernels::Gather gather = {dst, src, zeros, 1, 0, 8};
  const kernels::IndexedSum sum = {dst, 1, 1, zeros, nullptr, 0, &slice, 1, false};  // of nothing
  const kernels::FetchList list = {1, {}};
  std::vector<int> said = {Gpu().MoveRows(&move, 1, move.begin + 1, blocks, stream),
                           Gpu().MoveFew(&move, 1, move.begin + 1, blocks, stream),
                           Gpu().GatherRows(&gather, 1, 8, 8, blocks, stream),
                           Gpu().Fetch(&list, blocks, stream),
                           Gpu().SumIndexed({ElementKind::kF16, ElementKind::kF32}, &sum, blocks, stream),
                           Gpu().SumIndexed({ElementKind::kBF16, ElementKind::kF32}, &sum, blocks, stream)};
  for (const auto kind : {ElementKind::kF16, ElementKind::kBF16, ElementKind::kF32, ElementKind::kF64}) {
    said.push_back(Gpu().SumIndexed({kind, kind}, &sum, blocks, stream));
  }
  return said;
}

// A launch loads its kernel for its device unless that has been done: on each device by itself.
TEST(LazyLoads) {
  for (const int device : {4, 5}) {
    for (const bool loaded : {false, true}) {
      CHECK_OK(Gpu().SetDevice(device + (loaded ? 2 : 0)));
      if (loaded) CHECK_OK(Gpu().LoadKernels());
      const Streams streams(1);
      const int64_t before = kernels::emulatedLazyLoads();
      const std::vector<int> said = LaunchAll(1, streams[0]);
      CHECK(said == std::vector<int>(10, 0));
      CHECK(LaunchAll(1, streams[0]) == said);
      CHECK_OK(Gpu().SynchronizeStream(streams[0]));
      CHECK_EQ(kernels::emulatedLazyLoads() - before, loaded ? 0 : 10);
    }
  }
  CHECK_OK(Gpu().SetDevice(0));
}

TEST(BadLaunches) {
  const Streams streams(1);
  for (const int32_t blocks : {0, -1}) {
    CHECK(LaunchAll(blocks, streams[0]) == std::vector<int>(10, kernels::emulatedErrorInvalidConfiguration));
  }
  const std::vector<Move> many(kernels::kFewMoves + 1);
  CHECK_EQ(Gpu().MoveFew(many.data(), kernels::kFewMoves + 1, 16, 1, streams[0]), kernels::emulatedErrorInvalidValue);
}

}  // namespace
}  // namespace fastjax::test
