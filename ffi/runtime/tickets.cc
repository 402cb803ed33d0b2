#include "runtime/tickets.h"

namespace fastjax {
namespace {

// The low bits of a number are its slot's.
constexpr int kSlotBits = 20;
constexpr uint64_t kSlots = uint64_t{1} << kSlotBits;

}  // namespace

uint64_t Tickets::Issue(void* object) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) {
    if (slots_.size() == kSlots) return 0;
    free_.reserve(slots_.size() + 1);  // redeeming must not want memory
    slots_.emplace_back();
    free_.push_back(slots_.size() - 1);
  }
  const size_t slot = free_.back();
  free_.pop_back();
  slots_[slot] = {++issued_ << kSlotBits | slot, object};
  return slots_[slot].ticket;
}

void* Tickets::Redeem(uint64_t ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto slot = static_cast<size_t>(ticket % kSlots);
  if (ticket == 0 || slot >= slots_.size() || slots_[slot].ticket != ticket) return nullptr;
  void* const object = slots_[slot].object;
  slots_[slot] = {};
  free_.push_back(slot);
  return object;
}

}  // namespace fastjax
