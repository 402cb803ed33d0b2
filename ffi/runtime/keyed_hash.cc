#include "runtime/keyed_hash.h"

namespace fastjax {
namespace {

uint64_t Rotated(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

// Little-endian, whatever the machine is.
uint64_t Word(const uint8_t* data, size_t bytes) {
  uint64_t word = 0;
  for (size_t i = 0; i < bytes; ++i) word |= uint64_t{data[i]} << (8 * i);
  return word;
}

struct State {
  uint64_t v0, v1, v2, v3;

  void Round() {
    v0 += v1;
    v1 = Rotated(v1, 13) ^ v0;
    v0 = Rotated(v0, 32);
    v2 += v3;
    v3 = Rotated(v3, 16) ^ v2;
    v0 += v3;
    v3 = Rotated(v3, 21) ^ v0;
    v2 += v1;
    v1 = Rotated(v1, 17) ^ v2;
    v2 = Rotated(v2, 32);
  }

  void Absorb(uint64_t word) {
    v3 ^= word;
    Round();
    Round();
    v0 ^= word;
  }
};

}  // namespace

uint64_t KeyedHash(const Secret& secret, const void* data, size_t bytes) {
  const auto* const in = static_cast<const uint8_t*>(data);
  const uint64_t k0 = Word(secret.data(), 8);
  const uint64_t k1 = Word(secret.data() + 8, 8);
  State state{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573};
  const size_t whole = bytes / 8 * 8;
  for (size_t at = 0; at < whole; at += 8) state.Absorb(Word(in + at, 8));
  state.Absorb(Word(in + whole, bytes - whole) | uint64_t{bytes} << 56);
  state.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) state.Round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace fastjax
