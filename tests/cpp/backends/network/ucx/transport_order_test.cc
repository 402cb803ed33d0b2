// Transports over UCX: which rows go first, and how far ahead of their receivers.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/check.h"
#include "transport_rig.h"

namespace fastjax::test {
namespace {

// What a launch asks of a transport.
struct Terms {
  int64_t order = 0;
  int32_t stage = 0;
  int64_t window = std::numeric_limits<int64_t>::max();
};

// Whose chunks went, one after another, of several launches: by their names.
class Launch : public Ends {
 public:
  Launch(int64_t name, Terms terms, std::vector<int64_t>* went) : name_(name), terms_(terms), went_(went) {}
  void OnMoved(int64_t cookie) override {
    went_->push_back(name_);
    Ends::OnMoved(cookie);
  }
  int64_t order() const override { return terms_.order; }
  int32_t stage(int64_t /*cookie*/) const override { return terms_.stage; }
  int64_t window() const override { return terms_.window; }

 private:
  const int64_t name_;
  const Terms terms_;
  std::vector<int64_t>* const went_;  // by the transport's thread
};

// What earlier and later launches send from process 0: a long one to process 2, and to process 1. Of so many iovs,
// what goes between processes of one host goes in chunks as well.
struct TwoLaunches {
  TwoLaunches(const std::string& transports, size_t earlier_bytes, size_t later_bytes, int32_t later_rail = 0,
              Terms earlier_terms = {3}, Terms later_terms = {4})
      : rig(3, transports, 2),
        into_earlier(earlier_bytes),
        into_later(later_bytes),
        rail(later_rail),
        earlier(3, earlier_terms, &went),
        later(4, later_terms, &went) {
    data = Pattern(std::max(earlier_bytes, later_bytes) + 20000, 1);
    from_earlier = Cut(&data, earlier_bytes, 4000);
    from_later = Cut(&data, later_bytes, 4000);
    // So that what receivers ask for is there at once, and no connection has to be made for it.
    Exchange(&rig, 1, 0, 9, rail);
    Exchange(&rig, 2, 0, 9);
    rig.Send(0, 1, 1, from_later, &later, 0, rail);  // the one that began later comes first
    rig.Send(0, 2, 1, from_earlier, &earlier, 0);
    rig.Message(0, 1, "after the offers");
    rig.Message(0, 2, "after the offers");
    rig.handler(1).WaitMessages(1);
    rig.handler(2).WaitMessages(1);
  }
  void ReceiveEarlier() { rig.Receive(2, 0, 1, Whole(&into_earlier), &receives, 0); }
  void ReceiveLater() { rig.Receive(1, 0, 1, Whole(&into_later), &receives, 1, rail); }
  // Nothing goes before both have been asked for.
  void ReceiveBoth() {
    const Stopped stopped(&rig, 0);
    ReceiveLater();
    ReceiveEarlier();
    rig.On(1, [](UcxTransport*) {});
    rig.On(2, [](UcxTransport*) {});
  }
  void CheckArrived() {
    earlier.CheckAll(1);
    later.CheckAll(1);
    receives.CheckAll(2);
    CHECK(Joined(from_earlier) == Joined(Whole(&into_earlier)));
    CHECK(Joined(from_later) == Joined(Whole(&into_later)));
  }

  ConnectedRig rig;
  std::vector<std::byte> data, into_earlier, into_later;
  std::vector<Iov> from_earlier, from_later;
  const int32_t rail;
  std::vector<int64_t> went;
  Launch earlier, later;
  Ends receives;
};

// Until an earlier launch has sent all, a later one sends nothing through the same NIC, whoever was asked first.
TRANSPORT_TEST(EarlierLaunchesFirst) {
  TwoLaunches both(transports, 1000000, 20000000);
  both.ReceiveBoth();
  both.CheckArrived();
  const auto first = std::find(both.went.begin(), both.went.end(), 3);
  CHECK(std::is_sorted(first, both.went.end()));
  CHECK_EQ(both.went.back(), 4);
}

// It does send while the earlier one has nothing to send, since nobody asks for it.
TRANSPORT_TEST(LaterLaunchesFill) {
  TwoLaunches both(transports, 200000, 4000000);
  both.ReceiveLater();
  both.later.Wait(0);
  both.receives.Wait(1);
  CHECK(!both.earlier.Has(0));
  both.ReceiveEarlier();
  both.CheckArrived();
}

// So it does through another NIC. (Once in so many times: a receiver that gets no processor may begin when the earlier
// launch has sent all.)
TRANSPORT_TEST(LaunchesOfOtherNics) {
  constexpr int kTimes = 20;
  bool beside = false;
  for (int time = 0; time < kTimes && !beside; ++time) {
    TwoLaunches both(transports, 20000000, 200000, 1);
    both.ReceiveBoth();
    both.CheckArrived();
    const auto last_of_earlier = std::find(both.went.rbegin(), both.went.rend(), 3);
    beside = std::find(last_of_earlier, both.went.rend(), 4) != both.went.rend();
  }
  CHECK(beside);
}

// And where the one that is asked for cannot be sent: its receiver is stalled. (Here, a later one goes on after some
// ticks of the transport.)
TRANSPORT_TEST(LaunchesThatAreStalled) {
  TwoLaunches both(transports, 20000000, 4000000);
  both.ReceiveEarlier();
  {
    const Stopped stopped(&both.rig, 2);
    both.ReceiveLater();
    both.later.Wait(0);
    both.receives.Wait(1);
    CHECK(!both.receives.Has(0));
  }
  both.CheckArrived();
}

constexpr int64_t kSmallWindow = 64 << 10;

// Of one launch, the send of the earlier stage ends first, whoever was asked first, where a NIC has no room for a
// window of both: though it has five times as many bytes. (A receiver that gets no processor for long is stalled, and
// others go on: so not every chunk need be in order.)
TRANSPORT_TEST(EarlierStagesFirst) {
  TwoLaunches both(transports, 10000000, 2000000, 0, {0, 0, kSmallWindow}, {0, 1, kSmallWindow / 2});
  both.ReceiveBoth();
  both.CheckArrived();
  CHECK_EQ(both.went.back(), 4);
}

// Sends of one stage go side by side.
TRANSPORT_TEST(OneStageSideBySide) {
  TwoLaunches both(transports, 10000000, 10000000, 0, {0, 0, kSmallWindow}, {0, 0, kSmallWindow});
  both.ReceiveBoth();
  both.CheckArrived();
  CHECK(!std::is_sorted(both.went.begin(), both.went.end()));
  CHECK(!std::is_sorted(both.went.rbegin(), both.went.rend()));
}

// A receiver whose thread stops when the first chunk has come.
class Stopping : public Ends {
 public:
  explicit Stopping(std::shared_future<void> go) : go_(std::move(go)) {}
  void OnMoved(int64_t cookie) override {
    Ends::OnMoved(cookie);
    go_.wait();
  }

 private:
  const std::shared_future<void> go_;
};

// A receiver that has stopped is sent no more than a window. The other one of the stage is sent all, and so is that of
// a later stage.
TRANSPORT_TEST(Windows) {
  constexpr int64_t kLong = 4000000, kChunk = kSmallWindow / 4;
  for (const int32_t stage : {0, 1}) {
    TwoLaunches both(transports, kLong, kLong, 0, {0, 0, kSmallWindow}, {0, stage, kSmallWindow});
    std::promise<void> go;
    Stopping stopping(go.get_future().share());
    both.rig.Receive(2, 0, 1, Whole(&both.into_earlier), &stopping, 0);
    both.ReceiveLater();
    both.later.Wait(0);
    both.receives.Wait(1);
    CHECK_LE(both.earlier.moved(0), kSmallWindow / kChunk);
    go.set_value();
    stopping.Wait(0);
    both.earlier.Wait(0);
    CHECK(Joined(both.from_earlier) == Joined(Whole(&both.into_earlier)));
    CHECK_EQ(both.earlier.moved(0), (kLong + kChunk - 1) / kChunk - 1);  // the last one is no news
  }
}

// A receiver that is slow to take what comes.
class Slow : public Ends {
 public:
  void OnMoved(int64_t cookie) override {
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
    Ends::OnMoved(cookie);
  }
};

// A later launch that waits for long is sent a chunk now and then, whatever its window, so that it is seen to move.
TRANSPORT_TEST(Overdue) {
  TwoLaunches both(transports, 12000000, 200000, 0, {3, 0, kSmallWindow}, {4, 0, 1});
  Slow slow;
  both.rig.Receive(2, 0, 1, Whole(&both.into_earlier), &slow, 0);
  both.rig.On(2, [](UcxTransport*) {});
  both.ReceiveLater();
  slow.Wait(0);
  both.earlier.Wait(0);
  both.later.Wait(0);
  both.receives.Wait(1);
  const auto last_of_earlier = std::find(both.went.rbegin(), both.went.rend(), 3);
  CHECK(std::find(last_of_earlier, both.went.rend(), 4) != both.went.rend());
}

}  // namespace
}  // namespace fastjax::test
