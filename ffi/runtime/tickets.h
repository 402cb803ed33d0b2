// Declares Tickets, numbers that stand for what one custom call leaves for another.
#ifndef FASTJAX_RUNTIME_TICKETS_H_
#define FASTJAX_RUNTIME_TICKETS_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/process_state.h"

namespace fastjax {

// A number travels through memory that is XLA's, so whatever is found there is looked up before anything is made of it.
// From any thread.
class Tickets {
 public:
  static Tickets& Get() { return ProcessState<Tickets>(); }

  // Returns a number that none had before. Throws std::bad_alloc.
  uint64_t Issue(void* object);
  // Returns what the number stands for, and forgets it; null for a number that stands for nothing, as 0 does.
  void* Redeem(uint64_t ticket);

 private:
  struct Slot {
    uint64_t ticket = 0;
    void* object = nullptr;
  };

  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
  uint64_t issued_ = 0;
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_TICKETS_H_
