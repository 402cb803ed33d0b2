// Transports over UCX: messages, sends and receives, where nothing fails.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backends/network/ucx/header.h"
#include "support/check.h"
#include "transport_rig.h"

namespace fastjax::test {
namespace {

TRANSPORT_TEST(MessagesInOrder) {
  TransportRig rig(3, transports);
  constexpr size_t kMost = network::ucx::kMostData;
  std::vector<std::string> texts;
  for (int i = 0; i < 60; ++i) {
    // Of all ways to travel, mixed.
    texts.push_back(std::string(static_cast<size_t>(i % 5 == 0   ? 300000 + i
                                                    : i % 3 == 0 ? 9000 + i
                                                                 : i),
                                static_cast<char>('a' + i % 26)));
  }
  // And in parts that just fit.
  for (const size_t length : {kMost - 1, kMost, kMost + 1, 2 * kMost}) texts.push_back(std::string(length, 'x'));
  for (const std::string& text : texts) rig.Message(0, 1, text);  // before they have met
  rig.Introduce();
  for (const std::string& text : texts) rig.Message(2, 1, text);
  for (const std::string& text : texts) rig.Message(1, 1, text);
  rig.handler(1).WaitMessages(3 * texts.size());
  std::vector<std::vector<std::string>> got(3);
  for (auto& [process, text] : rig.handler(1).messages()) got[static_cast<size_t>(process)].push_back(text);
  for (const auto& from : got) CHECK(from == texts);
  CHECK(rig.handler(1).lost().empty());
  rig.handler(1).WaitTicks(3);
}

TRANSPORT_TEST(Rows) {
  ConnectedRig rig(2, transports, 2);
  Ends ends;
  int64_t cookie = 0;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8192}, size_t{8193}, size_t{100000}, size_t{20000000}}) {
    for (const int iovs : {1, 2, 40}) {
      for (const bool early : {false, true}) {
        const Context context(std::to_string(bytes) + " bytes, " + std::to_string(iovs) + " iovs, receive first " +
                              std::to_string(early));
        auto data = Pattern(bytes + 200, static_cast<uint32_t>(cookie));
        std::vector<std::byte> into(bytes + 200);
        const auto from = Cut(&data, bytes, iovs);
        const auto to = Cut(&into, bytes, 41 - iovs);
        const auto tag = static_cast<uint64_t>(cookie);
        const int32_t rail = iovs % 2;
        if (early) rig.Receive(1, 0, tag, to, &ends, cookie + 1, rail);
        rig.Send(0, 1, tag, from, &ends, cookie, rail);
        if (!early) rig.Receive(1, 0, tag, to, &ends, cookie + 1, rail);
        cookie += 2;
        ends.CheckAll(cookie);
        CHECK(Joined(from) == Joined(to));
      }
    }
  }
  CHECK_EQ(ends.count(), cookie);
  CHECK_EQ(StateOf(&rig.transport(1)).refused, 0);
}

TRANSPORT_TEST(MatchingOrder) {
  ConnectedRig rig(3, transports);
  Ends ends;
  std::vector<std::vector<std::byte>> data, into;
  constexpr int kEach = 30;
  for (int i = 0; i < 2 * kEach; ++i) {
    data.push_back(Pattern(i % 3 == 0 ? 50000 : 100, static_cast<uint32_t>(i)));
    into.emplace_back(data.back().size());
  }
  // The same tag from two processes, and another tag between.
  for (int i = 0; i < 2 * kEach; ++i)
    rig.Send(i % 2, 2, static_cast<uint64_t>(i / 2 % 2), Whole(&data[static_cast<size_t>(i)]), &ends, i);
  for (int tag = 0; tag < 2; ++tag) {
    for (int i = 0; i < 2 * kEach; ++i) {
      if (i / 2 % 2 == tag)
        rig.Receive(2, i % 2, static_cast<uint64_t>(tag), Whole(&into[static_cast<size_t>(i)]), &ends, 2 * kEach + i);
    }
  }
  ends.CheckAll(4 * kEach);
  CHECK(data == into);
}

TRANSPORT_TEST(ReceiverSetsThePace) {
  ConnectedRig rig(2, transports);
  Ends ends;
  auto small = Pattern(8000, 1);
  auto large = Pattern(9000, 2);
  std::vector<std::byte> into_small(8000), into_large(9000);
  rig.Send(0, 1, 1, Whole(&large), &ends, 0);
  rig.Send(0, 1, 2, Whole(&small), &ends, 1);
  ends.Wait(1);
  rig.Message(0, 1, "after them");
  rig.handler(1).WaitMessages(1);
  rig.handler(0).WaitTicks(3);
  CHECK(!ends.Has(0));
  CHECK_LT(StateOf(&rig.transport(0)).bytes_sent, 9000);
  rig.Receive(1, 0, 1, Whole(&into_large), &ends, 2);
  rig.Receive(1, 0, 2, Whole(&into_small), &ends, 3);
  ends.CheckAll(4);
  CHECK(large == into_large);
  CHECK(small == into_small);
}

// Whose requests moved, one after another.
class Journal : public Ends {
 public:
  void OnMoved(int64_t cookie) override {
    written_.push_back(cookie);
    Ends::OnMoved(cookie);
  }
  // When all have ended.
  const std::vector<int64_t>& written() const { return written_; }

 private:
  std::vector<int64_t> written_;  // by the transport's thread
};

// A short one need not wait for all of a long one by the same connection: three hundred times as long. Of so many iovs,
// what goes between processes of one host goes in chunks as well.
TRANSPORT_TEST(BesideEachOther) {
  constexpr size_t kLong = 60000000, kShort = 200000;
  ConnectedRig rig(2, transports);
  Ends ends;
  Journal journal;
  auto data = Pattern(kLong + 20000, 1);
  std::vector<std::byte> into(kLong), into_short(kShort);
  const auto from = Cut(&data, kLong, 4000), from_short = Cut(&data, kShort, 4000);
  rig.Send(0, 1, 0, from, &ends, 0);
  rig.Send(0, 1, 1, from_short, &ends, 1);
  rig.Message(0, 1, "after the offers");
  rig.handler(1).WaitMessages(1);
  const Iov to = Whole(&into).front(), to_short = Whole(&into_short).front();
  rig.On(1, [&](UcxTransport* transport) {
    transport->Receive({{0, 0, 0}, 0, &to, 1, &journal, 0});
    transport->Receive({{0, 0, 0}, 1, &to_short, 1, &journal, 1});
  });
  journal.CheckAll(2);
  ends.CheckAll(2);
  CHECK(Joined(from) == Joined(Whole(&into)) && Joined(from_short) == Joined(Whole(&into_short)));
  CHECK(journal.written().back() == 0);
}

TRANSPORT_TEST(Lengths) {
  ConnectedRig rig(2, transports);
  Ends ends;
  int64_t cookie = 0;
  for (const size_t sent : {size_t{100}, size_t{100000}}) {
    for (const size_t expected : {sent - 1, sent + 1}) {
      auto data = Pattern(sent, 1);
      std::vector<std::byte> into(sent + 100);
      const std::vector<std::byte> before = into;
      rig.Send(0, 1, 7, Whole(&data), &ends, cookie);
      rig.Receive(1, 0, 7, {{into.data(), expected}}, &ends, cookie + 1);
      ends.Wait(cookie);
      ends.Wait(cookie + 1);
      CHECK(ends.Of(cookie + 1).code == Code::kInternal);
      const std::string message = ends.Of(cookie + 1).message;
      CHECK_CONTAINS(message, std::to_string(sent) + " bytes");
      CHECK_CONTAINS(message, std::to_string(expected) + " were expected");
      CHECK(into == before);
      cookie += 2;
    }
  }
}

TRANSPORT_TEST(CancelAndDrop) {
  ConnectedRig rig(2, transports);
  Ends ends, others;
  std::vector<std::byte> into(10000);
  auto data = Pattern(10000, 1);
  rig.Receive(1, 0, 5, Whole(&into), &ends, 0);
  rig.Receive(1, 0, 6, Whole(&into), &others, 0);
  rig.On(1, [&](UcxTransport* transport) { transport->Cancel(&ends); });
  ends.CheckGone({0});
  rig.Send(0, 1, 6, Whole(&data), &others, 1);
  others.CheckAll(2);
  CHECK(into == data);
  // What arrived, and what arrives after; with the tag's upper half.
  rig.Send(0, 1, 0x100000001, Whole(&data), &ends, 1);
  rig.Message(0, 1, "sent after it");
  rig.handler(1).WaitMessages(1);
  CHECK(!ends.Has(1));
  rig.On(1, [&](UcxTransport* transport) { transport->Drop(0x100000000, 0xffffffff00000000); });
  ends.Wait(1);
  rig.Send(0, 1, 0x100000002, Whole(&data), &ends, 2);
  ends.Wait(2);
  std::fill(into.begin(), into.end(), std::byte{0});
  rig.Send(0, 1, 0x200000002, Whole(&data), &ends, 3);
  rig.Receive(1, 0, 0x200000002, Whole(&into), &ends, 4);
  ends.Wait(3);
  ends.Wait(4);
  CHECK(into == data);
}

// Whether messages to the other process go through memory.
bool HasRing(TransportRig* rig, int32_t process) {
  const std::vector<std::string> transports = StateOf(&rig->transport(process)).nic_workers[0].transports;
  return std::find(transports.begin(), transports.end(), "memory") != transports.end();
}

// Where there are rings, what finds no room in them takes the network, and the order stays.
TRANSPORT_TEST(FullRings) {
  ConnectedRig rig(2, transports);
  rig.Message(0, 1, "");
  rig.Message(1, 0, "");
  rig.handler(0).WaitMessages(1);
  rig.handler(1).WaitMessages(1);
  for (const int32_t process : {0, 1}) CHECK_EQ(HasRing(&rig, process), transports.empty());
  constexpr size_t kMessages = 2000;
  {
    const Stopped stopped(&rig, 1);
    rig.On(0, [](UcxTransport* transport) {
      for (size_t i = 0; i < kMessages; ++i) {
        const std::string text = std::to_string(i) + std::string(i % 500 == 0 ? 100000 : 700, '.');
        transport->SendMessage(1, text.data(), text.size());
      }
    });
  }
  rig.handler(1).WaitMessages(kMessages + 1);
  const auto messages = rig.handler(1).messages();
  for (size_t i = 0; i < kMessages; ++i) CHECK_EQ(messages[i + 1].second.find(std::to_string(i) + "."), 0u);
}

TEST(Descriptions) {
  TransportRig rig(2, "tcp");
  CHECK_CONTAINS(rig.transport(0).Describe(1), "has not joined");
  CHECK_CONTAINS(rig.transport(0).Describe(2), "does not exist");
  CHECK_CONTAINS(rig.transport(0).Describe(-1), "does not exist");
  CHECK_CONTAINS(rig.transport(0).Describe(0), "this one");
  CHECK_CONTAINS(rig.transport(0).AddPeer(1, "garbage"), "process 1");
  const std::string good = rig.transport(1).addresses();
  for (size_t length = 0; length < good.size(); ++length)
    CHECK(!rig.transport(0).AddPeer(1, good.substr(0, length)).empty());
  CHECK(!rig.transport(0).AddPeer(1, good + "x").empty());
  CHECK(!rig.transport(0).AddPeer(0, good).empty());
  rig.Introduce();
  rig.Message(0, 1, "hello");
  rig.handler(1).WaitMessages(1);
  CHECK(rig.transport(0).Describe(1).find("process 1 (") == 0);
  CHECK_CONTAINS(rig.transport(0).Describe(1), "pid " + std::to_string(getpid()));
  const auto state = StateOf(&rig.transport(0));
  CHECK_EQ(state.messages_sent, 1);
  CHECK_EQ(state.bytes_sent, 5);
  CHECK_EQ(state.nic_workers.size(), 1u);
  CHECK(!state.nic_workers[0].transports.empty() && state.nic_workers[0].transports[0].find("tcp/") == 0);
  Ends ends;
  rig.Send(0, 0, 1, {}, &ends, 0);
  rig.Send(0, 2, 1, {}, &ends, 1);
  rig.Receive(0, -1, 1, {}, &ends, 2);
  for (int i = 0; i < 3; ++i) {
    ends.Wait(i);
    CHECK(ends.Of(i).code == Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace fastjax::test
