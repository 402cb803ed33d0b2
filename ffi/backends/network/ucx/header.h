// Declares the header of everything that processes send to each other.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_HEADER_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "runtime/keyed_hash.h"

namespace fastjax::network::ucx {

constexpr uint32_t kHeaderMagic = 0x666a7877;
constexpr uint16_t kHeaderVersion = 4;

// The most data of one message, with all headers within a TCP segment of ours: UCX sends as much at once, and asks
// nobody first. What is longer goes in parts.
constexpr size_t kMostData = 61440;

// Each kind says of which process's request `number` is; the answer returns it.
enum class Kind : uint16_t {
  kMessage,  // a part of a control message; rows: bytes of it that follow in other parts
  kHello,    // the generation; tag: 1 if the sender can read the receiver's memory; number: 1 more than the descriptor
             // of the ring that it reads, if it has one for the receiver
  kRows,     // a send, whole
  kOffer,    // a send of so many rows, in bytes; the sender's number. What follows says where they are, if it says so
  kGrant,    // asks for what was offered: the sender's number, and in tag the receiver's
  kTaken,    // ends what was offered: the sender's number; tag: 1 if it has been read, 0 if nobody wants it
  kChunk,    // a part of what was asked for, from byte rows on: the receiver's number; tag: 0, or what it is to be
             // acknowledged by: the bytes of all chunks sent by this connection
  kAck,      // acknowledges chunks: tag, as they said; in rows, the NIC worker that sent them
  kProbe,    // asks for an answer by the same connection
  kHere,     // that answer
};

// Two NIC workers are joined by these. TCP takes megabytes of rows before they leave: an answer behind them would come
// too late for what it starts.
enum class Connection : uint16_t {
  kControl,
  kChunks,  // of rows, and what is asked of this connection itself
};
constexpr Connection kConnections[] = {Connection::kControl, Connection::kChunks};

struct Header {
  uint32_t magic;
  uint16_t version;
  Kind kind;
  int32_t from, to;           // processes
  uint64_t sender, receiver;  // their incarnations
  uint32_t generation;        // how often the two have lost or ended their connection
  uint16_t nic_worker;        // the sender's
  Connection connection;
  uint64_t sequence;  // of what the sender has sent by this connection in this generation
  uint64_t bytes;     // that follow
  uint64_t tag;
  uint64_t rows;
  uint64_t number;
  uint64_t hash;  // of all above
};
static_assert(sizeof(Header) == 88 && std::is_trivially_copyable_v<Header>, "no padding: all of it is hashed");

inline uint64_t HashOf(const Secret& secret, const Header& header) {
  return KeyedHash(secret, &header, sizeof(Header) - sizeof(header.hash));
}

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_HEADER_H_
