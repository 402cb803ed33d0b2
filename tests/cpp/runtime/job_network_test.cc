// The one wire of a process: what is said to it, and what is said while there is none.
#include "runtime/job_network.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "support/check.h"
#include "support/job_wire.h"

namespace fastjax::test {
namespace {

constexpr const char* kNotOpen = "fastjax's network is not open in this process";
constexpr const char* kOpenAlready = "fastjax's network is open already";
constexpr std::chrono::milliseconds kLimit{5};

TEST(NoneIsOpen) {
  WireState state;
  CHECK(TheWire() == nullptr);
  CHECK(!StateOfTheWire(&state));
  CHECK_EQ(AddPeer(1, "there"), kNotOpen);
  CHECK_EQ(PeerLost(1, "gone"), kNotOpen);
  CHECK(CloseTheWire(kLimit));
}

TEST(RefusedToOpen) {
  const WireOpener refuses = [](const WireOptions&, std::string* wrong) -> std::shared_ptr<JobWire> {
    *wrong = "no NIC";
    return nullptr;
  };
  std::string addresses = "as before";
  CHECK_EQ(OpenTheWire(refuses, {}, &addresses), "no NIC");
  CHECK_EQ(addresses, "as before");
  CHECK(TheWire() == nullptr);
}

TEST(Open) {
  std::shared_ptr<DeadJobWire> wire, second;
  std::string addresses;
  WireOptions options;
  options.library = "libdead.so";
  CHECK_EQ(OpenTheWire(OpenDead(&wire), options, &addresses), "");
  CHECK_EQ(addresses, "nowhere");
  CHECK(TheWire() == wire);
  WireState state;
  CHECK(StateOfTheWire(&state));
  CHECK_EQ(state.library, "libdead.so");
  CHECK_EQ(OpenTheWire(OpenDead(&second), options, &addresses), kOpenAlready);
  CHECK(second == nullptr);
  CHECK_EQ(AddPeer(2, "there"), "");
  CHECK_EQ(AddPeer(2, ""), "no addresses");
  CHECK_EQ(PeerLost(2, "gone"), "");
  CHECK(wire->told == std::vector<std::string>({"joined 2: there", "joined 2: ", "lost 2: gone"}));
}

// Somebody else opens one meanwhile: one of the two stays, and the other is closed.
TEST(OpenedAtOnce) {
  CHECK(CloseTheWire(kLimit));
  std::shared_ptr<DeadJobWire> wire, late;
  std::string addresses;
  const WireOpener slow = [&](const WireOptions& options, std::string* wrong) {
    CHECK_EQ(OpenTheWire(OpenDead(&wire), options, &addresses), "");
    return OpenDead(&late)(options, wrong);
  };
  CHECK_EQ(OpenTheWire(slow, {}, &addresses), kOpenAlready);
  CHECK(TheWire() == wire);
  CHECK(late->told == std::vector<std::string>({"close within 0 ms"}));
}

// The wire is the parent's: a child that was forked has none, and may open its own.
TEST(Forked) {
  const auto parents = TheWire();
  const pid_t child = fork();
  if (child == 0) {
    std::shared_ptr<DeadJobWire> own;
    std::string addresses;
    const bool none = TheWire() == nullptr;
    const bool opened = OpenTheWire(OpenDead(&own), {}, &addresses).empty();
    _exit(none && opened && TheWire() == own ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(TheWire() == parents);
}

// Whether or not its thread ends in time, the wire is gone.
TEST(Closed) {
  for (const bool closes : {true, false}) {
    CHECK(CloseTheWire(kLimit));
    std::shared_ptr<DeadJobWire> wire;
    std::string addresses;
    CHECK_EQ(OpenTheWire(OpenDead(&wire), {}, &addresses), "");
    wire->closes = closes;
    CHECK_EQ(CloseTheWire(kLimit), closes);
    CHECK(wire->told == std::vector<std::string>({"close within 5 ms"}));
    TestNoneIsOpen();
  }
}

}  // namespace
}  // namespace fastjax::test
