// Declares Ring, which carries messages between processes of one host through a ring of bytes in memory that both map,
// instead of the network.
//
// The receiver makes the ring, in anonymous memory that is freed with the last process that maps it, and sends the
// number of its descriptor. A process that may read the receiver's memory may open the descriptor, and finds in the
// ring a proof that it is the right one. Messages of a ring are checked like messages of the network.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_RING_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/network/ucx/header.h"

namespace fastjax::network::ucx {

// The longest message of a ring. Longer ones take the network.
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

  // Returns the descriptor that the sender opens; negative if the ring is closed.
  int descriptor() const { return descriptor_; }

  // Reads the header of the next message, and the NIC worker of the receiver that it is for. False if there is no
  // message. Bytes that cannot be a message end the ring.
  bool Next(Header* header, uint32_t* nic_worker);
  // Reads the data of the message that Next returned, all header.bytes of it, and frees its space.
  void Take(std::byte* data);

  // Asks senders to ring the doorbell from now on. False if a message came before they could know.
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

  // Opens the ring of that descriptor of that process. False if it is no ring, or another one.
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
