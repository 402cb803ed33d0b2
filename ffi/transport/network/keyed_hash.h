// SipHash-2-4 (Aumasson and Bernstein, 2012): a hash that only those can compute who know the key.
#ifndef FASTJAX_TRANSPORT_NETWORK_KEYED_HASH_H_
#define FASTJAX_TRANSPORT_NETWORK_KEYED_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastjax::transport::network {

using Secret = std::array<uint8_t, 16>;

uint64_t KeyedHash(const Secret& secret, const void* data, size_t bytes);

}  // namespace fastjax::transport::network

#endif  // FASTJAX_TRANSPORT_NETWORK_KEYED_HASH_H_
