// Declares ObjectIds, numbers by which one custom call finds an object that another one made.
#ifndef FASTJAX_RUNTIME_OBJECT_IDS_H_
#define FASTJAX_RUNTIME_OBJECT_IDS_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/process_state.h"

namespace fastjax {

// An id passes through a buffer of XLA's, so a call looks up what it finds there instead of using it as a pointer.
// Functions are called from any thread.
class ObjectIds {
 public:
  static ObjectIds& Get() { return ProcessState<ObjectIds>(); }

  // Returns an id that no object had before; 0 if there are too many objects. Throws std::bad_alloc.
  uint64_t Add(void* object);
  // Returns the object of an id, and forgets both; null for a number that is no id, as 0 is.
  void* Take(uint64_t id);

 private:
  struct Slot {
    uint64_t id = 0;
    void* object = nullptr;
  };

  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
  uint64_t last_id_ = 0;
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_OBJECT_IDS_H_
