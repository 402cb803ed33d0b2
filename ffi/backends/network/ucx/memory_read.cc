#include "backends/network/ucx/memory_read.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "runtime/process_memory.h"

namespace fastjax::network::ucx {
namespace {

// An offer, in words: hash of the others, number, address of the lease, number of iovs, address and bytes of
// each.
constexpr size_t kHead = OfferWords(0);

uint64_t AddressOf(const void* at) { return reinterpret_cast<uintptr_t>(at); }

uint64_t WordAt(const void* words, size_t index) {
  uint64_t word = 0;
  std::memcpy(&word, static_cast<const std::byte*>(words) + index * sizeof(word), sizeof(word));
  return word;
}

// Processes of one pid namespace see each other by number. Processes in network namespaces of their own are meant to
// use the network.
std::string HostIdentity() {
  std::ostringstream identity;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  identity << boot;
  for (const char* const name : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat found{};
    if (stat(name, &found) != 0) return "";
    identity << ' ' << found.st_ino;
  }
  return identity.str();
}

// Orders accesses to memory that another process reads. The thread sanitizer does not support std::atomic_thread_fence.
void Fence() { __sync_synchronize(); }

}  // namespace

ReadProbe ReadProbeAt(const Secret& secret, const uint64_t* word) {
  const std::string identity = HostIdentity();
  const uint64_t host = identity.empty() ? 0 : KeyedHash(secret, identity.data(), identity.size());
  return {host, getpid(), AddressOf(word), *word};
}

bool CanRead(const ReadProbe& own, const ReadProbe& other) {
  if (own.host == 0 || own.host != other.host) return false;
  uint64_t found = ~other.value;
  ProcessReader reader(other.pid);
  reader.Add(&found, other.at, sizeof(found));
  return reader.Finish() && found == other.value;
}

bool MayUseMemory(const std::string& transports) {
  if (transports.empty()) return true;
  std::istringstream list(transports);
  std::string name;
  while (std::getline(list, name, ',')) {
    for (const char* const memory : {"all", "sm", "shm", "cma"}) {
      if (name == memory) return true;
    }
  }
  return false;
}

void Lease::Clear() {
  if (number_.load(std::memory_order_relaxed) == 0) return;
  number_.store(0, std::memory_order_relaxed);
  Fence();  // before anything is written where the rows were
}

void WriteOffer(const Secret& secret, uint64_t number, const Lease& lease, const Iov* iovs, int32_t count,
                std::byte* words) {
  size_t at = 1;
  const auto put = [&](uint64_t word) { std::memcpy(words + sizeof(word) * at++, &word, sizeof(word)); };
  put(number);
  put(AddressOf(lease.at()));
  put(static_cast<uint64_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    put(AddressOf(iovs[i].data));
    put(iovs[i].bytes);
  }
  const uint64_t hash = KeyedHash(secret, words + sizeof(uint64_t), (at - 1) * sizeof(uint64_t));
  std::memcpy(words, &hash, sizeof(hash));
}

bool Reading::Genuine(const Secret& secret, const void* words, size_t length, uint64_t bytes) {
  if (words == nullptr || length < kHead * sizeof(uint64_t) || length % sizeof(uint64_t) != 0) return false;
  const auto* const rest = static_cast<const std::byte*>(words) + sizeof(uint64_t);
  if (WordAt(words, 0) != KeyedHash(secret, rest, length - sizeof(uint64_t))) return false;
  const uint64_t count = WordAt(words, 3);
  if (count > static_cast<uint64_t>(kMostIovs) || length != OfferWords(static_cast<int32_t>(count)) * sizeof(uint64_t))
    return false;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum += WordAt(words, kHead + 2 * i + 1);
  return sum == bytes;
}

void Reading::Prepare(const ReadProbe& from, const void* words, const Iov* iovs, int32_t count) {
  pid_ = from.pid;
  number_ = WordAt(words, 1);
  lease_at_ = WordAt(words, 2);
  job_.Clear();
  job_.ReadFrom(pid_);
  const uint64_t sources = WordAt(words, 3);
  uint64_t source = 0, source_done = 0, unpacked = 0;
  for (int32_t i = 0; i < count && source < sources;) {
    const uint64_t at = WordAt(words, kHead + 2 * source);
    const uint64_t left = WordAt(words, kHead + 2 * source + 1) - source_done;
    const uint64_t bytes = std::min<uint64_t>(left, iovs[i].bytes - unpacked);
    // An address of the other process, held as a pointer of this one: the job hands it to the system.
    const auto* const there =
        reinterpret_cast<const std::byte*>(at + source_done);  // NOLINT(performance-no-int-to-ptr)
    job_.Add({static_cast<std::byte*>(iovs[i].data) + unpacked, there, static_cast<int64_t>(bytes),
              kernels::Destination::kCached});
    source_done += bytes;
    unpacked += bytes;
    if (bytes == left) ++source, source_done = 0;
    if (unpacked == iovs[i].bytes) ++i, unpacked = 0;
  }
}

void Reading::Run(Reading* const* readings, size_t count) {
  for (size_t i = 0; i < count;) {
    const size_t first = i;
    ProcessReader reader(readings[first]->pid_);
    for (; i < count && readings[i]->pid_ == readings[first]->pid_; ++i) readings[i]->job_.AddTo(&reader);
    if (reader.Finish()) continue;
    for (size_t k = first; k < i; ++k) readings[k]->job_.RunInline();  // one that fails is not the others' fault
  }
}

void Reading::Check(Reading* const* readings, size_t count) {
  Fence();  // the rows first, then the leases
  for (size_t i = 0; i < count;) {
    const size_t first = i;
    ProcessReader reader(readings[first]->pid_);
    for (; i < count && readings[i]->pid_ == readings[first]->pid_; ++i) {
      Reading* const reading = readings[i];
      reading->found_ = ~reading->number_;
      reader.Add(&reading->found_, reading->lease_at_, sizeof(reading->found_));
    }
    const bool all = reader.Finish();
    for (size_t k = first; k < i; ++k) {
      Reading* const reading = readings[k];
      ProcessReader alone(reading->pid_);
      if (!all) alone.Add(&reading->found_, reading->lease_at_, sizeof(reading->found_));
      reading->good_ = alone.Finish() && !reading->job_.failed() && reading->found_ == reading->number_;
    }
  }
}

}  // namespace fastjax::network::ucx
