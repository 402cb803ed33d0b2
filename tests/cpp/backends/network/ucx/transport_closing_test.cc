// Transports over UCX that close: what is in flight ends, what was said is still heard, and nothing is left.
#include <dirent.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "support/check.h"
#include "transport_rig.h"

namespace fastjax::test {
namespace {

long Entries(const char* folder) {
  long count = 0;
  DIR* const opened = opendir(folder);
  while (readdir(opened) != nullptr) ++count;
  closedir(opened);
  return count;
}

TEST(NothingIsLeft) {
  long descriptors = 0;
  long threads = 0;
  for (int round = 0; round < 100; ++round) {
    if (round == 2) {
      descriptors = Entries("/proc/self/fd");
      threads = Entries("/proc/self/task");
    }
    ConnectedRig rig(2, round % 2 == 0 ? "tcp" : "");
    Exchange(&rig, 0, 1, 1);
    if (round % 5 == 0) rig.On(0, [](UcxTransport* transport) { transport->Disconnect(1); });
  }
  CHECK_EQ(Entries("/proc/self/fd"), descriptors);
  // One that has been joined is listed until the kernel has done with it.
  WaitUntil([threads] { return Entries("/proc/self/task") <= threads; });
}

TEST(Closing) {
  Ends ends;
  std::vector<std::byte> data(100000);
  {
    ConnectedRig rig(2, "tcp");
    for (int i = 0; i < 20; ++i) rig.Message(0, 1, std::string(static_cast<size_t>(1000 * i), 'x'));
    rig.Close(0);
    rig.handler(1).WaitMessages(20);  // all that was in flight
    rig.handler(1).WaitLost(1);
    CHECK(rig.transport(0).Close(std::chrono::milliseconds{0}));
    rig.transport(0).Post([] { std::abort(); });
    rig.Receive(1, 0, 3, Whole(&data), &ends, 0);
    rig.Send(1, 0, 3, Whole(&data), &ends, 1);
  }
  // Requests that nobody answers end, too.
  ends.CheckGone({0, 1});
}

// The handler is told that the transport closes, and may go on until it is idle.
TEST(ClosingWaitsForTheHandler) {
  ConnectedRig rig(2, "tcp");
  Exchange(&rig, 0, 1, 1);
  Ends ends;
  std::vector<std::byte> data(100000);
  rig.Receive(0, 1, 2, Whole(&data), &ends, 0);
  rig.handler(0).SetBusy(true);
  std::future<bool> closed = std::async(std::launch::async, [&] { return rig.transport(0).Close(kToClose); });
  rig.handler(0).WaitClosed();
  CHECK(rig.handler(0).closed().code == Code::kUnavailable);
  CHECK_CONTAINS(rig.handler(0).closed().message, "has closed its network");
  ends.Wait(0);
  CHECK(ends.Of(0).message == rig.handler(0).closed().message);
  rig.Message(0, 1, "last words");
  rig.handler(1).WaitMessages(1);
  std::promise<void> ran;
  CHECK(rig.transport(0).Post([&] { ran.set_value(); }));
  ran.get_future().wait();
  rig.handler(0).SetBusy(false);
  CHECK(closed.get());
  CHECK(!rig.transport(0).Post([] { std::abort(); }));
}

// Also where the time is up: the connections are closed, but what comes back is still taken.
TEST(ClosingOutlastsItsTime) {
  ConnectedRig rig(2, "tcp");
  Exchange(&rig, 0, 1, 1);
  rig.handler(0).SetBusy(true);
  std::future<bool> closed =
      std::async(std::launch::async, [&] { return rig.transport(0).Close(std::chrono::milliseconds{0}); });
  rig.handler(1).WaitLost(1);  // it is closed
  Ends ends;
  std::vector<std::byte> data(10);
  rig.Send(0, 1, 2, Whole(&data), &ends, 0);
  rig.Receive(0, 1, 3, Whole(&data), &ends, 1);
  ends.CheckGone({0, 1});
  rig.Message(0, 1, "too late");
  rig.handler(0).WaitLost(1);
  rig.handler(0).SetBusy(false);
  CHECK(closed.get());
}

}  // namespace
}  // namespace fastjax::test
