// Exchanges that have been started: a done waits for the end of its own, and for no other.
#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>

#include "backends/gpu/device/gpu.h"
#include "kernels/driver.h"
#include "support/check.h"
#include "support/gpu/gpu_rig.h"

namespace fastjax::test {
namespace {

using gpu::Beside;
using gpu::Flight;
using gpu::Gpu;

const kernels::Driver& Driver() { return *fastjax_gpu_driver(); }

// One device: XLA's stream, the one for exchanges, and addresses that arrays might have.
struct Device {
  explicit Device(const kernels::Driver* driver = fastjax_gpu_driver()) : gpu(driver) {
    CHECK(gpu.SideStream(0, Beside::kExchanges, &exchanges).ok());
  }

  // Starts an exchange of run `run` that lasts until `computation` is let go.
  void Start(const void* rows, Computation* computation, int64_t run = 1) {
    computation->PutOn(exchanges);
    CHECK(gpu.AddFlight(0, rows, Flight{run, {&arrays[0], nullptr}, nullptr}).ok());
  }
  Status Done(const void* rows) { return gpu.EndFlight(0, rows, {rows, &arrays[0]}, xla.stream); }
  // Whether XLA's stream is held up now.
  bool Waits() {
    kernels::Event event = nullptr;
    int reached = 0;
    CHECK(gpu.TakeEvent(0, &event).ok());
    CHECK_EQ(Driver().RecordEvent(event, xla.stream), 0);
    CHECK_EQ(Driver().QueryEvent(event, &reached), 0);
    gpu.ReturnEvent(0, event);
    return reached == 0;
  }

  Gpu gpu;
  OwnStream xla;
  kernels::Stream exchanges = nullptr;
  std::byte arrays[4] = {};
};

TEST(DoneWaitsForItsOwn) {
  Device device;
  Computation first, second;
  device.Start(&device.arrays[1], &first);
  device.Start(&device.arrays[2], &second);
  first.LetGo();
  CHECK(device.Done(&device.arrays[1]).ok());
  device.xla.Synchronize();
  CHECK(device.Done(&device.arrays[2]).ok());
  CHECK(device.Waits());
  second.LetGo();
  device.xla.Synchronize();
  CHECK_CONTAINS(device.Done(&device.arrays[2]).message, "no exchange of emulated device 0");
}

// Of two at one address, whose first has had no done, the later counts.
TEST(TheSameAddressAgain) {
  Device device;
  Computation first, second;
  device.Start(&device.arrays[1], &first);
  device.Start(&device.arrays[1], &second);
  first.LetGo();
  CHECK(device.Done(&device.arrays[1]).ok());
  CHECK(device.Waits());
  second.LetGo();
  device.xla.Synchronize();
}

// Exchanges without rows have no address: each done waits for all of them so far.
TEST(WithoutRows) {
  Device device;
  Computation first, second;
  device.Start(nullptr, &first);
  device.Start(nullptr, &second);
  first.LetGo();
  CHECK(device.Done(nullptr).ok());
  CHECK(device.Waits());
  second.LetGo();
  CHECK(device.Done(nullptr).ok());
  device.xla.Synchronize();
}

TEST(OperandsThatAreNotKept) {
  Device device;
  Computation computation;
  device.Start(&device.arrays[1], &computation);
  computation.LetGo();
  const Status status = device.gpu.EndFlight(0, &device.arrays[1], {&device.arrays[2]}, device.xla.stream);
  CHECK_CONTAINS(status.message, "has not kept the operands");
  CHECK_EQ(Driver().SynchronizeStream(device.exchanges), 0);
}

// Where the driver fails, what has been put on the stream has ended, and is no exchange to be waited for.
TEST(NotAdded) {
  const FaultyDriver faulty;
  Device device(faulty.get());
  for (const auto& [calls, text] :
       {std::pair<int64_t, const char*>{0, "be chosen"}, {2, "make an event"}, {4, "record an"}}) {
    Computation computation;
    computation.PutOn(device.exchanges);
    std::atomic<bool> let_go{false};
    std::thread thread([&] {
      let_go = true;
      computation.LetGo();
    });
    FaultyDriver::FailAfter(calls);
    CHECK_CONTAINS(device.gpu.AddFlight(0, &device.arrays[1], {}).message, text);
    CHECK(FaultyDriver::Stop() && let_go);
    thread.join();
    CHECK_CONTAINS(device.Done(&device.arrays[1]).message, "no exchange of emulated device 0");
  }
}

// A program that fails waits for its own exchanges, and leaves those of others.
TEST(Failure) {
  Device device;
  Computation own, other;
  device.Start(&device.arrays[1], &own, 1);
  device.Start(&device.arrays[2], &other, 2);
  own.LetGo();
  device.gpu.DropFlights(0, 1);
  CHECK(device.Done(&device.arrays[2]).ok());
  CHECK(device.Waits());
  other.LetGo();
  device.xla.Synchronize();
  CHECK(!device.Done(&device.arrays[1]).ok());
}

}  // namespace
}  // namespace fastjax::test
