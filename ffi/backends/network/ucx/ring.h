// Declares Ring, which carries messages between processes of one host through a ring of bytes in memory that both map,
// instead of the network.
//
// The receiver makes the ring, in memory without a name that ends with the last process that has it, and says under
// which of its descriptors it is. Whoever may read its memory may open that, and finds in the ring a proof that it is
// the one meant. What comes out of a ring is checked like what comes off a network.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_RING_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/network/ucx/header.h"

namespace fastjax::network::ucx {

// Longer messages take the network.
constexpr size_t kMostInRing = 65536;

struct RingMemory;

struct Unmap {
  void operator()(RingMemory* memory) const;
};

// The receiver's end.
class RingReader {
 public:
  RingReader() = default;
  ~RingReader() { Close(); }
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;

  // `proof`: what the sender will look for. A byte into the pipe `doorbell` wakes the receiver. False if the system
  // refuses.
  bool Open(uint64_t proof, int doorbell);
  void Close();

  // What the sender needs to know; negative if closed.
  int descriptor() const { return descriptor_; }

  // A message's header and the receiver's NIC worker that it is for; false if there is no message. What stands there
  // and cannot be one ends the ring.
  bool Next(Header* header, uint32_t* nic_worker);
  // The data of the message that Next gave, all header.bytes of them; then the message is over.
  void Take(std::byte* data);

  // From now on senders ring the doorbell; false if something came before they knew.
  bool Arm();
  void Disarm();

 private:
  std::unique_ptr<RingMemory, Unmap> memory_;
  int descriptor_ = -1;
  uint64_t at_ = 0;
  size_t length_ = 0;  // of the message's data
};

// The sender's.
class RingWriter {
 public:
  RingWriter() = default;
  ~RingWriter() { Close(); }
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  // The ring under that descriptor of that process. False if it is none, or not the one that is meant.
  bool Open(int64_t pid, int descriptor, uint64_t proof);
  void Close();
  bool connected() const { return memory_ != nullptr; }

  // False if there is no room, or no ring. A receiver that sleeps is woken by Ring, once for all that was sent.
  bool Send(const Header& header, uint32_t nic_worker, const std::byte* data);
  void Ring();

 private:
  std::unique_ptr<RingMemory, Unmap> memory_;
  int doorbell_ = -1;
  uint64_t at_ = 0;
  bool due_ = false;  // to ring
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_RING_H_
