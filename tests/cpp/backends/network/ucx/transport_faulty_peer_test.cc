// A transport and a process of the same job that sends wrong messages.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backends/network/ucx/addresses.h"
#include "backends/network/ucx/header.h"
#include "backends/network/ucx/memory_read.h"
#include "backends/network/ucx/nic_worker.h"
#include "backends/network/ucx/ring.h"
#include "backends/network/ucx/row_transfers.h"
#include "support/check.h"
#include "transport_rig.h"

namespace fastjax::test {
namespace {

namespace ucx = network::ucx;

constexpr uint64_t kIncarnation = 77;

// Process 1. It knows the secret, and sends to process 0 what a test wants.
class FaultyPeer {
 public:
  explicit FaultyPeer(const std::string& victim) {
    std::string wrong;
    library_ = ucx::Load(UcxLibrary(), &wrong);
    nic_worker_ = ucx::NicWorker::Open(*library_, 0, "", "tcp", 2, &wrong);
    CHECK_EQ(wrong, "");
    CHECK_EQ(ucx::Decode(victim, &victim_), "");
    endpoint_ = Connect();
    const auto heard = [](void* argument, const void* data, size_t length, void*, size_t, const ucp_am_recv_param_t*) {
      ucx::Header header{};
      CHECK_EQ(length, sizeof(header));
      std::memcpy(&header, data, sizeof(header));
      auto* const own = static_cast<FaultyPeer*>(argument);
      if (header.kind == ucx::Kind::kHello) own->ring_ = static_cast<int>(header.number) - 1;
      if (header.kind == ucx::Kind::kGrant) own->granted_ = header.tag;
      return UCS_OK;
    };
    CHECK(nic_worker_->SetReceiver(heard, this) == UCS_OK);
  }

  // `near`: so that the victim reads this one's memory, and greets it.
  std::string addresses(bool near = false) const {
    ucx::Addresses own;
    if (near) own.read_probe = ucx::ReadProbeAt(OptionsOf(1, 2, "").secret, &probe_word_);
    own.process = 1;
    own.incarnation = kIncarnation;
    own.host = "peer";
    own.nic_workers = {nic_worker_->address()};
    return ucx::Encode(own);
  }

  // Of the ring that the victim has for this one; negative if it has not greeted, or has none.
  int ring() const { return ring_; }
  // The victim's number of what it last asked for; 0: nothing.
  uint64_t granted() const { return granted_; }
  bool OpenRing() {
    const uint64_t words[] = {1, kIncarnation, victim_.incarnation};
    return writer_.Open(getpid(), ring_, fastjax::KeyedHash(OptionsOf(1, 2, "").secret, words, sizeof(words)));
  }
  void SendByRing(const ucx::Header& header, uint32_t nic_worker, const std::string& text) {
    CHECK(writer_.Send(header, nic_worker, reinterpret_cast<const std::byte*>(text.data())));
    writer_.Ring();
  }

  ucx::Header HeaderOf(const std::string& text, uint32_t generation, uint64_t sequence, int32_t from = 1,
                       ucx::Connection connection = ucx::Connection::kControl, uint64_t more = 0) const {
    ucx::Header header{};
    header.magic = ucx::kHeaderMagic;
    header.version = ucx::kHeaderVersion;
    header.kind = ucx::Kind::kMessage;
    header.from = from;
    header.to = 0;
    header.sender = kIncarnation;
    header.receiver = victim_.incarnation;
    header.generation = generation;
    header.connection = connection;
    header.sequence = sequence;
    header.rows = more;
    header.bytes = text.size();
    return Signed(header);
  }
  static ucx::Header Signed(ucx::Header header) {
    header.hash = ucx::HashOf(OptionsOf(1, 2, "tcp").secret, header);
    return header;
  }

  void Send(const std::string& text, uint32_t generation, uint64_t sequence,
            ucx::Connection connection = ucx::Connection::kControl, uint64_t more = 0,
            uint32_t flags = UCP_AM_SEND_FLAG_EAGER) {
    Send(HeaderOf(text, generation, sequence, 1, connection, more), text, flags);
  }
  void Send(const ucx::Header& header, const std::string& text, uint32_t flags = UCP_AM_SEND_FLAG_EAGER) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = flags;
    void* const request =
        library_->ucp_am_send_nbx(endpoint_, 0, &header, sizeof(header), text.data(), text.size(), &param);
    CHECK(!UCS_PTR_IS_ERR(request));
    // Its memory is the test's until all is over; UCX needs nothing more than to be driven.
    if (UCS_PTR_IS_PTR(request)) library_->ucp_request_free(request);
  }

  // Closes the connection, and makes another one.
  void ConnectAgain() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* const request = library_->ucp_ep_close_nbx(endpoint_, &param);
    CHECK(!UCS_PTR_IS_ERR(request));
    if (UCS_PTR_IS_PTR(request)) library_->ucp_request_free(request);
    endpoint_ = Connect();
  }

  template <typename Condition>
  void DriveUntil(Condition condition, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const auto drive = [&] {
      nic_worker_->Progress();
      return condition();
    };
    WaitUntil(drive, file, line);
  }

 private:
  ucp_ep_h Connect() {
    const auto failed = [](void*, ucp_ep_h, ucs_status_t) {};
    ucp_ep_h made = nullptr;
    CHECK(nic_worker_->Connect(victim_.nic_workers[0], failed, nullptr, &made) == UCS_OK);
    return made;
  }

  const ucx::Library* library_ = nullptr;
  std::unique_ptr<ucx::NicWorker> nic_worker_;
  ucx::Addresses victim_;
  ucp_ep_h endpoint_ = nullptr;
  uint64_t probe_word_ = 5;
  int ring_ = -1;
  uint64_t granted_ = 0;
  ucx::RingWriter writer_;
};

struct Victim {
  explicit Victim(const std::string& transports = "tcp") {
    // Where the two sides do not share the connection that fails, UCX finds out only by asking, every 20 s otherwise.
    setenv("UCX_KEEPALIVE_INTERVAL", "1s", 1);  // NOLINT(concurrency-mt-unsafe)
    std::string wrong;
    transport = UcxTransport::Open(OptionsOf(0, 2, transports), &wrong);
    CHECK_EQ(wrong, "");
    transport->SetHandler(&handler);
  }
  ~Victim() { CHECK(transport->Close(kToClose)); }

  RecordingHandler handler;
  std::shared_ptr<UcxTransport> transport;
};

struct Acquainted {
  Acquainted() : peer(victim.transport->addresses()) { CHECK_EQ(victim.transport->AddPeer(1, peer.addresses()), ""); }
  void DriveUntilHeard(size_t messages, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    peer.DriveUntil([&] { return victim.handler.messages().size() == messages; }, file, line);
  }

  Victim victim;
  FaultyPeer peer;
};

// A generation that nobody can have counted to would leave none to go on with.
TEST(Generations) {
  Acquainted both;
  const std::string good = "one", bad = "two", after = "three", again = "four";
  both.peer.Send(good, 0, 0);
  both.DriveUntilHeard(1);
  both.peer.Send(bad, ~uint32_t{0}, 0);
  both.peer.Send(after, 0, 1);
  both.DriveUntilHeard(2);
  CHECK_EQ(both.victim.handler.messages().back().second, after);
  CHECK_EQ(StateOf(both.victim.transport.get()).refused, 1);
  CHECK(both.victim.handler.renewed().empty());
  // As many as a process may count while this one is stopped.
  both.peer.Send(again, 1000, 0);
  both.DriveUntilHeard(3);
  CHECK_EQ(both.victim.handler.renewed().size(), 1u);
  // Of a message whose end is lost with its generation, nothing is left.
  both.peer.Send(bad, 1000, 1, ucx::Connection::kControl, 2);
  both.peer.Send(good, 1000, 2, ucx::Connection::kControl, 1);
  both.peer.Send(after, 1001, 0);
  both.DriveUntilHeard(4);
  CHECK_EQ(both.victim.handler.messages().back().second, after);
}

// A message that comes twice is refused the second time, and not kept.
TEST(Sequences) {
  Acquainted both;
  const std::string first = "first", second = "second";
  both.peer.Send(first, 0, 0);
  both.peer.Send(first, 0, 0);
  both.peer.Send(second, 0, 1);
  both.DriveUntilHeard(2);
  CHECK_EQ(both.victim.handler.messages().back().second, second);
  CHECK_EQ(StateOf(both.victim.transport.get()).refused, 1);
}

// A message that UCX would have to fetch first is refused, since none of ours is sent so.
TEST(Rendezvous) {
  Acquainted both;
  const std::string first = "first", second = "second";
  both.peer.Send(first, 0, 0);
  both.DriveUntilHeard(1);
  both.peer.Send(second, 0, 1, ucx::Connection::kControl, 0, UCP_AM_SEND_FLAG_RNDV);
  both.peer.DriveUntil([&] { return StateOf(both.victim.transport.get()).refused == 1; });
  both.peer.Send(second, 0, 1);
  both.DriveUntilHeard(2);
  CHECK_EQ(both.victim.handler.messages().back().second, second);
}

// Each of the two connections has an order of its own, and there is no third one.
TEST(Connections) {
  Acquainted both;
  const std::string first = "first", second = "second", third = "third";
  both.peer.Send(second, 0, 1, ucx::Connection::kChunks);  // before its predecessor
  both.peer.Send(first, 0, 0);
  both.DriveUntilHeard(1);
  CHECK_EQ(both.victim.handler.messages().back().second, first);
  both.peer.Send(first, 0, 1, ucx::Connection{2});
  both.peer.Send(third, 0, 0, ucx::Connection::kChunks);
  both.DriveUntilHeard(3);
  CHECK(both.victim.handler.messages()[1].second == third && both.victim.handler.messages()[2].second == second);
  CHECK_EQ(StateOf(both.victim.transport.get()).refused, 1);
}

// A process that ends closes one connection before another. What it sent by the other one is heard, and then, when no
// more comes, the process is lost.
TEST(OneConnectionFails) {
  Acquainted both;
  const std::string first = "first", last = "last";
  both.peer.Send(first, 0, 0);
  both.DriveUntilHeard(1);
  both.peer.ConnectAgain();
  both.peer.Send(last, 0, 1);
  both.DriveUntilHeard(2);
  CHECK_EQ(both.victim.handler.messages().back().second, last);
  both.peer.DriveUntil([&] { return both.victim.handler.lost().size() == 1; });
}

// Nor does it go on without an end: what is sent by the connection that has failed is lost meanwhile.
TEST(OneConnectionFailsAndTheOtherIsBusy) {
  Acquainted both;
  const std::string text = "text";
  both.peer.Send(text, 0, 0);
  both.DriveUntilHeard(1);
  both.peer.ConnectAgain();
  uint64_t sent = 0;
  auto next = std::chrono::steady_clock::now();
  both.peer.DriveUntil([&] {
    if (std::chrono::steady_clock::now() >= next) {
      both.peer.Send(text, 0, sent++, ucx::Connection::kChunks);
      next = std::chrono::steady_clock::now() + std::chrono::milliseconds{20};
    }
    return both.victim.handler.lost().size() == 1;
  });
  CHECK(both.victim.handler.messages().size() > 1);
}

// What comes through a ring is believed no more than what comes over the network.
TEST(Rings) {
  Victim victim("");
  FaultyPeer peer(victim.transport->addresses());
  CHECK_EQ(victim.transport->AddPeer(1, peer.addresses(true)), "");
  victim.transport->Post([&] { victim.transport->SendMessage(1, "", 0); });
  peer.DriveUntil([&] { return peer.ring() >= 0; });
  CHECK(peer.OpenRing());
  const std::string first = "first", second = "second", third = "third";
  peer.SendByRing(peer.HeaderOf(first, 0, 0), 0, first);
  peer.DriveUntil([&] { return victim.handler.messages().size() == 1; });
  ucx::Header forged = peer.HeaderOf(second, 0, 1);
  forged.tag += 1;
  peer.SendByRing(forged, 0, second);
  peer.SendByRing(peer.HeaderOf(second, 0, 1), 1, second);     // for a NIC worker that there is not
  peer.SendByRing(peer.HeaderOf(second, 0, 1, 0), 0, second);  // from somebody else
  peer.SendByRing(peer.HeaderOf(first, 0, 0), 0, first);       // once more
  peer.SendByRing(peer.HeaderOf(third, 0, 2), 0, third);       // before its predecessor
  peer.Send(second, 0, 1);
  peer.DriveUntil([&] { return victim.handler.messages().size() == 3; });
  const auto messages = victim.handler.messages();
  CHECK(messages[0].second == first && messages[1].second == second && messages[2].second == third);
  CHECK_EQ(StateOf(victim.transport.get()).refused, 4);
  CHECK(victim.handler.lost().empty() && victim.handler.renewed().empty());
  ucx::Header unknown = peer.HeaderOf(first, 0, 3);
  unknown.kind = ucx::Kind{99};
  peer.SendByRing(FaultyPeer::Signed(unknown), 0, first);
  peer.DriveUntil([&] { return StateOf(victim.transport.get()).refused == 5; });
  // What cannot be a message ends the ring, and the connection with it, as nobody knows what else was in it.
  ucx::Header broken = peer.HeaderOf(first, 0, 4);
  broken.magic += 1;
  peer.SendByRing(broken, 0, first);
  peer.DriveUntil([&] { return victim.handler.renewed().size() == 1; });
}

// A part of rows that does not follow, or is more than was asked for, ends them, and is not written anywhere.
TEST(Chunks) {
  for (const uint64_t from : {0, 1}) {
    Acquainted both;
    Ends ends;
    std::vector<std::byte> into(10);
    const std::vector<Iov> iovs = Whole(&into);
    both.victim.transport->Post([&] { both.victim.transport->Receive({{1, 0, 0}, 5, iovs.data(), 1, &ends, 0}); });
    ucx::Header offer = both.peer.HeaderOf("", 0, 0);
    offer.kind = ucx::Kind::kOffer;
    offer.tag = 5;
    offer.rows = into.size();
    both.peer.Send(FaultyPeer::Signed(offer), "");
    both.peer.DriveUntil([&] { return both.peer.granted() != 0; });
    const std::string text(from == 0 ? 11 : 9, 'x');
    ucx::Header chunk = both.peer.HeaderOf(text, 0, 0, 1, ucx::Connection::kChunks, from);
    chunk.kind = ucx::Kind::kChunk;
    chunk.number = both.peer.granted();
    both.peer.Send(FaultyPeer::Signed(chunk), text);
    both.peer.DriveUntil([&] { return ends.Has(0); });
    CHECK_CONTAINS(ends.Of(0).message, "sent " + std::to_string(text.size()) + " bytes from byte " +
                                           std::to_string(from) + " on where 10 were left");
    CHECK(into == std::vector<std::byte>(10));
  }
}

// Rows that nobody asks for are kept, though not for ever, unless they are of an exchange that was given up; and offers
// are not that this process cannot read.
TEST(UnmetRows) {
  ucx::TransportParts parts;
  parts.peers = std::vector<ucx::Peer>(2);
  ucx::Connections connections(&parts);
  ucx::RowTransfers rows(&parts, &connections, [] {});
  ucx::Arrival arrival;
  arrival.header.kind = ucx::Kind::kRows;
  arrival.header.tag = 5;
  rows.OnArrival(&parts.peers[1], arrival);
  const auto now = std::chrono::steady_clock::now();
  rows.Expire(now + std::chrono::minutes{59});
  arrival.header.tag = 9;
  rows.OnArrival(&parts.peers[1], arrival);
  CHECK_EQ(parts.peers[1].unmet.size(), 2u);
  rows.Drop(8, ~uint64_t{3});
  CHECK(parts.peers[1].unmet.size() == 1 && parts.peers[1].unmet.front().header.tag == 5);
  rows.Expire(now + std::chrono::minutes{61});
  CHECK(parts.peers[1].unmet.empty());
  arrival.header.kind = ucx::Kind::kOffer;
  arrival.header.tag = 5;
  arrival.length = 8;
  rows.OnArrival(&parts.peers[1], arrival);
  CHECK(parts.peers[1].unmet.empty() && parts.counters.refused == 1);
}

// An acknowledgement of what there is not, or of what was not sent, says nothing.
TEST(Acknowledgements) {
  ucx::TransportParts parts;
  parts.nic_workers.resize(1);
  parts.peers = std::vector<ucx::Peer>(2);
  ucx::Peer& peer = parts.peers[1];
  peer.addresses.nic_workers = {"one"};
  for (const ucx::Connection which : ucx::kConnections)
    peer.endpoints.push_back(std::make_shared<ucx::Endpoint>(&peer, 0, 0, which, 0));
  ucx::Endpoint& chunks = *peer.endpoint(0, 0, ucx::Connection::kChunks);
  chunks.chunk_bytes = 120;
  chunks.marked = 100;
  chunks.stalled_ticks = 2;
  ucx::Connections connections(&parts);
  ucx::RowTransfers rows(&parts, &connections, [] {});
  const auto acknowledge = [&](uint64_t bytes, uint64_t ours, uint16_t theirs) {
    ucx::Arrival arrival;
    arrival.header.kind = ucx::Kind::kAck;
    arrival.header.tag = bytes;
    arrival.header.rows = ours;
    arrival.header.nic_worker = theirs;
    rows.OnArrival(&peer, arrival);
    return chunks.acknowledged;
  };
  CHECK_EQ(acknowledge(50, 1, 0), 0);
  CHECK_EQ(acknowledge(50, ~uint64_t{0}, 0), 0);
  CHECK_EQ(acknowledge(50, 0, 1), 0);
  CHECK_EQ(acknowledge(110, 0, 0), 0);
  CHECK_EQ(acknowledge(~uint64_t{0}, 0, 0), 0);
  CHECK_EQ(chunks.stalled_ticks, 2);
  CHECK_EQ(acknowledge(50, 0, 0), 50);
  CHECK_EQ(chunks.stalled_ticks, 0);
  CHECK_EQ(acknowledge(40, 0, 0), 50);
  CHECK_EQ(acknowledge(100, 0, 0), 100);
}

}  // namespace
}  // namespace fastjax::test
