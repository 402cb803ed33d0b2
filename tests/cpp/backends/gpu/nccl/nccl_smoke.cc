// Whether NCCL, or RCCL, is what we declare it to be (api.h): all that we call of it, by one rank on one device.
//
//   nccl_smoke [--limit SECONDS] [LIBRARY]
//
// LIBRARY has the driver of the GPU, as that of gpu_driver_test does; without, the GPU is the emulated one. NCCL is
// what the variable FASTJAX_NCCL_LIBRARY names, by a path or as the loader knows it; without, the loader's own. The
// first call that fails, or that takes longer than the limit, is named, and ends the program with 1.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backends/gpu/nccl/library.h"
#include "support/gpu_driver/device.h"
#include "support/gpu_driver/lists.h"

namespace fastjax::test {
namespace {

using gpu::nccl::Comm;
using gpu::nccl::Config;
using gpu::nccl::kInProgress;
using gpu::nccl::kInt8;
using gpu::nccl::kInvalidArgument;
using gpu::nccl::kSuccess;
using gpu::nccl::Library;
using gpu::nccl::Result;
using gpu::nccl::UniqueId;
using gpu_support::Device;
using gpu_support::Memory;
using gpu_support::Random;
using gpu_support::RandomBytes;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kPoll{50};

// What is being tried, printed as it begins. What fails is named in the last line, and so is what hangs: a signal ends
// the program then.
class Progress {
 public:
  explicit Progress(std::chrono::seconds limit) : limit_(static_cast<unsigned>(limit.count())) {
    std::signal(SIGALRM, [](int) { std::_Exit(write(STDOUT_FILENO, late_.data(), late_.size()) < 0 ? 2 : 1); });
  }
  void Begin(std::string what) {
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
    what_ = std::move(what);
    ++steps_;
    alarm(0);
    late_ = "nccl_smoke: FAILED: " + what_ + ": it has not ended within " + std::to_string(limit_) + " s\n";
    alarm(limit_);
  }
  // Without destructors: what has failed may hold what they would wait for.
  [[noreturn]] void Fail(const std::string& why) const {
    std::printf("nccl_smoke: FAILED: %s: %s\n", what_.c_str(), why.c_str());
    std::fflush(stdout);
    std::_Exit(1);
  }
  int steps() const { return steps_; }

 private:
  inline static std::string late_;  // said by the signal

  const unsigned limit_;
  std::string what_;
  int steps_ = 0;
};

const char* Kind(bool blocking) { return blocking ? "that blocks" : "that does not block"; }

class Smoke {
 public:
  Smoke(const Library* library, const Device* device, Progress* progress)
      : nccl_(*library), device_(*device), progress_(*progress) {}

  void Run();

 private:
  static constexpr int64_t kGuard = 64;  // bytes before and behind each message that are nobody's

  struct Made {
    Comm comm;
    bool blocking;
  };

  std::string Said(Result result, const char* call, Comm comm) const;
  void Must(Result result, const char* call, Comm comm = nullptr) const;
  void MustBegin(Result result, const char* call, const Made& made) const;
  void Await(const char* call, const Made& made) const;
  UniqueId NewId() const;
  Made Begin(bool blocking, int ranks) const;
  Made Make(bool blocking) const;
  void End(const Made& made) const;
  void Abort(const Made& made) const;
  void Put(const Made& made, const std::vector<int64_t>& sizes, const Memory& from, const Memory& to) const;
  void Send(const Made& made, const std::vector<int64_t>& sizes) const;
  void CheckHealth(const Made& made) const;

  void TryConfigs() const;
  void TryMessages(bool blocking) const;
  double MicrosecondsOfStep(bool blocking) const;
  void TryAbort(bool blocking) const;
  void TryAbsentRank() const;

  const Library& nccl_;
  const Device& device_;
  Progress& progress_;
};

std::string Smoke::Said(Result result, const char* call, Comm comm) const {
  const char* const text = nccl_.GetErrorString(result);
  const char* const last = nccl_.GetLastError(comm);
  return std::string(call) + " returned " + std::to_string(result) + " (" + (text == nullptr ? "" : text) +
         "), last error '" + (last == nullptr ? "" : last) + "'; NCCL_DEBUG=INFO has it say more";
}

void Smoke::Must(Result result, const char* call, Comm comm) const {
  if (result != kSuccess) progress_.Fail(Said(result, call, comm));
}

void Smoke::MustBegin(Result result, const char* call, const Made& made) const {
  if (made.blocking || result != kInProgress) Must(result, call, made.comm);
}

// As the transport does, but for the deadline: what takes too long is found by `progress_`.
void Smoke::Await(const char* call, const Made& made) const {
  Result state = kInProgress;
  while (state == kInProgress) {
    Must(nccl_.CommGetAsyncError(made.comm, &state), "ncclCommGetAsyncError", made.comm);
    if (state == kInProgress) std::this_thread::sleep_for(kPoll);
  }
  Must(state, call, made.comm);
}

UniqueId Smoke::NewId() const {
  UniqueId id;
  Must(nccl_.GetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

// Rank 0.
Smoke::Made Smoke::Begin(bool blocking, int ranks) const {
  Made made{nullptr, blocking};
  Config config;
  config.blocking = blocking ? 1 : 0;
  const UniqueId id = NewId();
  Must(nccl_.GroupStart(), "ncclGroupStart");
  MustBegin(nccl_.CommInitRankConfig(&made.comm, ranks, id, 0, &config), "ncclCommInitRankConfig", made);
  MustBegin(nccl_.GroupEnd(), "ncclGroupEnd", made);
  return made;
}

Smoke::Made Smoke::Make(bool blocking) const {
  const Made made = Begin(blocking, 1);
  Await("ncclCommInitRankConfig", made);
  return made;
}

void Smoke::End(const Made& made) const {
  if (!made.blocking) {
    MustBegin(nccl_.CommFinalize(made.comm), "ncclCommFinalize", made);
    Await("ncclCommFinalize", made);
  }
  Must(nccl_.CommDestroy(made.comm), "ncclCommDestroy");
}

// By another thread than that which used it, as the transport does.
void Smoke::Abort(const Made& made) const {
  std::thread([&] {
    device_.Must(device_.driver().SetDevice(0), "choose device 0");
    Must(nccl_.CommAbort(made.comm), "ncclCommAbort");
  }).join();
}

// In one group, messages of these sizes, each with guards.
void Smoke::Put(const Made& made, const std::vector<int64_t>& sizes, const Memory& from, const Memory& to) const {
  Must(nccl_.GroupStart(), "ncclGroupStart");
  int64_t at = kGuard;
  for (const int64_t size : sizes) {
    const auto bytes = static_cast<size_t>(size);
    MustBegin(nccl_.Send(from.data() + at, bytes, kInt8, 0, made.comm, device_.stream()), "ncclSend", made);
    MustBegin(nccl_.Recv(to.data() + at, bytes, kInt8, 0, made.comm, device_.stream()), "ncclRecv", made);
    at += size + kGuard;
  }
  MustBegin(nccl_.GroupEnd(), "ncclGroupEnd", made);
  if (!made.blocking) Await("ncclGroupEnd", made);
}

void Smoke::Send(const Made& made, const std::vector<int64_t>& sizes) const {
  const auto count = static_cast<int64_t>(sizes.size());
  const auto room = static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), (count + 1) * kGuard));
  Random random(room);
  const std::vector<std::byte> sent = RandomBytes(room, &random);
  std::vector<std::byte> wanted = RandomBytes(room, &random);
  const Memory from(&device_, room);
  const Memory to(&device_, room);
  from.Fill(sent);
  to.Fill(wanted);
  Put(made, sizes, from, to);
  int64_t at = kGuard;
  for (const int64_t size : sizes) {
    std::copy_n(sent.begin() + at, size, wanted.begin() + at);
    at += size + kGuard;
  }
  const std::vector<std::byte> found = to.Read();
  const auto [bad, good] = std::mismatch(found.begin(), found.end(), wanted.begin());
  if (bad != found.end()) {
    progress_.Fail("byte " + std::to_string(bad - found.begin()) + " of " + std::to_string(room) + " is " +
                   std::to_string(std::to_integer<int>(*bad)) + " instead of " +
                   std::to_string(std::to_integer<int>(*good)));
  }
  CheckHealth(made);
}

void Smoke::CheckHealth(const Made& made) const {
  Result state = kInProgress;
  Must(nccl_.CommGetAsyncError(made.comm, &state), "ncclCommGetAsyncError", made.comm);
  Must(state, "a communicator that has nothing to do", made.comm);
}

// NCCL looks at these fields, and so tells that it finds them where we have them.
void Smoke::TryConfigs() const {
  const auto refuses = [&](const char* what, auto spoil) {
    progress_.Begin(std::string("a config with ") + what + " is refused");
    Config config;
    config.blocking = 1;
    spoil(&config);
    Comm comm = nullptr;
    const Result result = nccl_.CommInitRankConfig(&comm, 1, NewId(), 0, &config);
    if (result == kInvalidArgument) return;
    progress_.Fail("it was not: " + Said(result, "ncclCommInitRankConfig", nullptr));
  };
  refuses("another magic number", [](Config* config) { config->magic += 1; });
  refuses("blocking = 7", [](Config* config) { config->blocking = 7; });
  refuses("cgaClusterSize = -7", [](Config* config) { config->cga_cluster_size = -7; });
  refuses("minCTAs = 5 and maxCTAs = 4", [](Config* config) {
    config->min_ctas = 5;
    config->max_ctas = 4;
  });
  refuses("splitShare = 7", [](Config* config) { config->split_share = 7; });
}

void Smoke::TryMessages(bool blocking) const {
  const std::string with = std::string(" with a communicator ") + Kind(blocking);
  progress_.Begin(std::string("make a communicator ") + Kind(blocking));
  const Made made = Make(blocking);
  CheckHealth(made);
  const std::vector<int64_t> sizes = {1, 15, 4096, 4097, (1 << 20) + 1, 16 << 20};
  for (const int64_t size : sizes) {
    progress_.Begin("send and receive " + std::to_string(size) + " bytes" + with);
    Send(made, {size});
  }
  progress_.Begin("send and receive 6 messages in one group" + with);
  Send(made, sizes);
  progress_.Begin("send and receive 0 bytes" + with);
  Send(made, {0});
  progress_.Begin("send and receive 0 bytes among others" + with);
  Send(made, {100, 0, 300});
  progress_.Begin(std::string("destroy a communicator ") + Kind(blocking));
  End(made);
}

// What the host needs to put a small group on the stream, the median of many.
double Smoke::MicrosecondsOfStep(bool blocking) const {
  constexpr int kSteps = 200;
  progress_.Begin(std::string("measure steps with a communicator ") + Kind(blocking));
  const Made made = Make(blocking);
  const Memory from(&device_, 4096);
  const Memory to(&device_, 4096);
  std::vector<double> times;
  for (int step = 0; step < kSteps; ++step) {
    const Clock::time_point begin = Clock::now();
    Put(made, {1024}, from, to);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    device_.Wait();
  }
  End(made);
  std::nth_element(times.begin(), times.begin() + kSteps / 2, times.end());
  std::printf("%.1f us\n", times[kSteps / 2]);
  return times[kSteps / 2];
}

// What is in flight then may arrive or not. The stream goes on, and so does NCCL.
void Smoke::TryAbort(bool blocking) const {
  progress_.Begin(std::string("abort a communicator ") + Kind(blocking) + ", with messages in flight");
  constexpr int64_t kBytes = 16 << 20;
  const Memory from(&device_, kBytes + 2 * kGuard);
  const Memory to(&device_, kBytes + 2 * kGuard);
  const Made made = Make(blocking);
  for (int i = 0; i < 8; ++i) Put(made, {kBytes}, from, to);
  Abort(made);
  progress_.Begin("wait for the stream after that");
  device_.Wait();
  progress_.Begin("send and receive after that");
  const Made next = Make(blocking);
  Send(next, {4097});
  End(next);
}

// A process that does not come: whoever waits for it has to get away.
void Smoke::TryAbsentRank() const {
  progress_.Begin("begin a communicator of which the other rank stays away");
  const Made made = Begin(false, 2);
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(100);
  for (; Clock::now() < deadline; std::this_thread::sleep_for(kPoll)) {
    Result state = kSuccess;
    Must(nccl_.CommGetAsyncError(made.comm, &state), "ncclCommGetAsyncError", made.comm);
    if (state == kInProgress) continue;
    Must(state, "ncclCommInitRankConfig", made.comm);
    progress_.Fail("the communicator is ready, without its other rank");
  }
  progress_.Begin("abort it");
  Abort(made);
}

void Smoke::Run() {
  TryMessages(true);
  TryMessages(false);
  const double blocking = MicrosecondsOfStep(true);
  const double other = MicrosecondsOfStep(false);
  TryAbort(true);
  TryAbort(false);
  TryConfigs();
  TryAbsentRank();
  std::printf(
      "nccl_smoke: passed: %s, %d things tried; a step takes the host %.1f us, %.1f us where it does not block\n",
      nccl_.version.c_str(), progress_.steps(), blocking, other);
}

}  // namespace

int Main(std::chrono::seconds limit, const std::string& driver) {
  Progress progress(limit);
  progress.Begin("load the driver of the GPU");
  const Device device(driver);
  std::printf("%s, %s\n", device.driver().platform, driver.empty() ? "emulated" : driver.c_str());
  progress.Begin("load NCCL");
  const char* const given = std::getenv("FASTJAX_NCCL_LIBRARY");  // NOLINT(concurrency-mt-unsafe)
  const bool named = given != nullptr && *given != '\0';
  const char* const usual = std::string_view(device.driver().platform) == "ROCM" ? "librccl.so.1" : "libnccl.so.2";
  std::string wrong;
  const Library* const library = gpu::nccl::Load({named ? given : usual}, &wrong);
  if (library == nullptr) progress.Fail(wrong);
  std::printf("%s, %s\n", library->version.c_str(), library->path.c_str());
  Smoke(library, &device, &progress).Run();
  return 0;
}

}  // namespace fastjax::test

int main(int argc, char** argv) {
  std::chrono::seconds limit(60);
  std::string driver;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--limit" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      limit = std::chrono::seconds(std::atoi(argv[++i]));
    } else if (argument.substr(0, 1) == "-" || !driver.empty()) {
      std::fprintf(stderr, "usage: nccl_smoke [--limit SECONDS] [LIBRARY]\n");
      return 2;
    } else {
      driver = argument;
    }
  }
  return fastjax::test::Main(limit, driver);
}
