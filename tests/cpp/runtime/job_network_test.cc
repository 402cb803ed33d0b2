// The one transport of a process.
#include "runtime/job_network.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "support/check.h"
#include "support/job_transport.h"

namespace fastjax::test {
namespace {

constexpr const char* kOpenAlready = "fastjax's network is open already";
constexpr std::chrono::milliseconds kLimit{5};

TEST(NoneIsOpen) {
  CHECK(TheTransport() == nullptr);
  CHECK(CloseTheTransport(kLimit));
}

TEST(RefusedToOpen) {
  const TransportOpener refuses = [](const TransportOptions&, std::string* wrong) -> std::shared_ptr<JobTransport> {
    *wrong = "no NIC";
    return nullptr;
  };
  std::string addresses = "as before";
  CHECK_EQ(OpenTheTransport(refuses, {}, &addresses), "no NIC");
  CHECK_EQ(addresses, "as before");
  CHECK(TheTransport() == nullptr);
}

TEST(Open) {
  std::shared_ptr<DeadJobTransport> transport, second;
  std::string addresses;
  CHECK_EQ(OpenTheTransport(OpenDead(&transport), {}, &addresses), "");
  CHECK_EQ(addresses, "nowhere");
  CHECK(TheTransport() == transport);
  CHECK_EQ(OpenTheTransport(OpenDead(&second), {}, &addresses), kOpenAlready);
  CHECK(second == nullptr);
}

// Somebody else opens one meanwhile: one of the two stays, and the other is closed.
TEST(OpenedAtOnce) {
  CHECK(CloseTheTransport(kLimit));
  std::shared_ptr<DeadJobTransport> transport, late;
  std::string addresses;
  const TransportOpener slow = [&](const TransportOptions& options, std::string* wrong) {
    CHECK_EQ(OpenTheTransport(OpenDead(&transport), options, &addresses), "");
    return OpenDead(&late)(options, wrong);
  };
  CHECK_EQ(OpenTheTransport(slow, {}, &addresses), kOpenAlready);
  CHECK(TheTransport() == transport);
  CHECK(late->told == std::vector<std::string>({"close within 0 ms"}));
}

// The transport is the parent's: a child that was forked has none, and may open its own.
TEST(Forked) {
  const auto parents = TheTransport();
  const pid_t child = fork();
  if (child == 0) {
    std::shared_ptr<DeadJobTransport> own;
    std::string addresses;
    const bool none = TheTransport() == nullptr;
    const bool opened = OpenTheTransport(OpenDead(&own), {}, &addresses).empty();
    _exit(none && opened && TheTransport() == own ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(TheTransport() == parents);
}

// Whether or not its thread ends in time, the transport is gone.
TEST(Closed) {
  for (const bool closes : {true, false}) {
    CHECK(CloseTheTransport(kLimit));
    std::shared_ptr<DeadJobTransport> transport;
    std::string addresses;
    CHECK_EQ(OpenTheTransport(OpenDead(&transport), {}, &addresses), "");
    transport->closes = closes;
    CHECK_EQ(CloseTheTransport(kLimit), closes);
    CHECK(transport->told == std::vector<std::string>({"close within 5 ms"}));
    TestNoneIsOpen();
  }
}

}  // namespace
}  // namespace fastjax::test
