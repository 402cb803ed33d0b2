#include "runtime/object_ids.h"

namespace fastjax {
namespace {

// The low bits of an id are the index of its slot.
constexpr int kSlotBits = 20;
constexpr uint64_t kSlots = uint64_t{1} << kSlotBits;

}  // namespace

uint64_t ObjectIds::Add(void* object) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) {
    if (slots_.size() == kSlots) return 0;
    free_.reserve(slots_.size() + 1);  // taking must not want memory
    slots_.emplace_back();
    free_.push_back(slots_.size() - 1);
  }
  const size_t slot = free_.back();
  free_.pop_back();
  slots_[slot] = {++last_id_ << kSlotBits | slot, object};
  return slots_[slot].id;
}

void* ObjectIds::Take(uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto slot = static_cast<size_t>(id % kSlots);
  if (id == 0 || slot >= slots_.size() || slots_[slot].id != id) return nullptr;
  void* const object = slots_[slot].object;
  slots_[slot] = {};
  free_.push_back(slot);
  return object;
}

}  // namespace fastjax
