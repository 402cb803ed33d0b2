// Declares SipHash-2-4 (Aumasson and Bernstein, 2012): a hash that can be computed only with the key.
#ifndef FASTJAX_RUNTIME_KEYED_HASH_H_
#define FASTJAX_RUNTIME_KEYED_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastjax {

using Secret = std::array<uint8_t, 16>;

uint64_t KeyedHash(const Secret& secret, const void* data, size_t bytes);

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_KEYED_HASH_H_
