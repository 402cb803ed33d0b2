// A hash of what plans say, to compare them across builds; it shares nothing with the planner's own.
#ifndef FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_DIGEST_H_
#define FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_DIGEST_H_

#include <cstdint>

#include "planner/transfer.h"

namespace fastjax::test {

class Digest {
 public:
  void Add(uint64_t value) {
    hash_ = (hash_ ^ value) * 0xFF51AFD7ED558CCD;
    hash_ ^= hash_ >> 29;
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0x243F6A8885A308D3;
};

inline void AddTransfer(const planner::Transfer& transfer, Digest* digest) {
  for (const int64_t field : {static_cast<int64_t>(transfer.phase), int64_t{transfer.stage}, int64_t{transfer.src},
                              int64_t{transfer.dst}, int64_t{transfer.origin}, int64_t{transfer.target},
                              transfer.first_row, transfer.rows, transfer.src_row, transfer.dst_row}) {
    digest->Add(static_cast<uint64_t>(field));
  }
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_DIGEST_H_
