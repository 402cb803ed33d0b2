// Declares how a receiver reads rows out of the memory of another process of this host, by one copy.
//
// UCX would do this too, but not where peers may fail: a receiver that is late could read, without anybody noticing,
// memory that its sender has given back. So the sender sets a lease that the receiver can read, and clears it
// before it gives back the memory. If the word is still set after the receiver has read, what it has read are the rows.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_MEMORY_READ_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_MEMORY_READ_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/network/ucx/addresses.h"
#include "runtime/copy_pool.h"
#include "runtime/keyed_hash.h"
#include "runtime/transport.h"

namespace fastjax::network::ucx {

// Returns the read probe of this process. `word` must stay where it is.
ReadProbe ReadProbeAt(const Secret& secret, const uint64_t* word);
bool CanRead(const ReadProbe& own, const ReadProbe& other);
// Whether UCX, told to use these transports, would use the memory of this host.
bool MayUseMemory(const std::string& transports);

// A word in the sender's memory: the number of a send while its rows may be read, else 0. It stays at its address for
// as long as there is a transport.
class Lease {
 public:
  void Set(uint64_t number) { number_.store(number, std::memory_order_release); }
  // A receiver that reads from now on notices.
  void Clear();
  const void* at() const { return &number_; }

 private:
  std::atomic<uint64_t> number_{0};
};

// An offer is a message of so many words, for so many iovs.
constexpr int32_t kMostIovs = 3800;
constexpr size_t OfferWords(int32_t count) { return 4 + 2 * static_cast<size_t>(count); }
void WriteOffer(const Secret& secret, uint64_t number, const Lease& lease, const Iov* iovs, int32_t count,
                std::byte* words);

// What a receiver reads of one offer.
class Reading {
 public:
  // False if the words are no offer of so many bytes by a process that knows the secret.
  static bool Genuine(const Secret& secret, const void* words, size_t length, uint64_t bytes);

  // Prepares the job, from a genuine offer of as many bytes as the iovs have.
  void Prepare(const ReadProbe& from, const void* words, const Iov* iovs, int32_t count);
  CopyJob* job() { return &job_; }
  // Does the jobs of several on the calling thread, with as few system calls as possible.
  static void Run(Reading* const* readings, size_t count);
  // Finds out, once the jobs of these are done, whether what they read is what was offered.
  static void Check(Reading* const* readings, size_t count);
  bool good() const { return good_; }

 private:
  int64_t pid_ = 0;
  uint64_t found_ = 0;
  bool good_ = false;
  uint64_t number_ = 0, lease_at_ = 0;
  CopyJob job_;
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_MEMORY_READ_H_
