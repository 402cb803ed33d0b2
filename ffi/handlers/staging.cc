#include "handlers/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fastjax::handlers {
namespace {

constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void StagedOperands::Copy(std::initializer_list<StagedOperand> operands) {
  size_t bytes = kAlignment;
  dimensions_.clear();
  for (const StagedOperand& operand : operands) {
    bytes += Aligned(operand.bytes);
    dimensions_.insert(dimensions_.end(), operand.dimensions.begin(), operand.dimensions.end());
  }
  if (bytes > capacity_) {
    memory_.reset(new std::byte[bytes]);  // not made_unique's zeros
    capacity_ = bytes;
  }
  auto* at = memory_.get();
  at += Aligned(reinterpret_cast<uintptr_t>(at)) - reinterpret_cast<uintptr_t>(at);
  int64_t* dimensions = dimensions_.data();
  count_ = 0;
  for (const StagedOperand& operand : operands) {
    if (operand.bytes > 0) std::memcpy(at, operand.data, operand.bytes);
    const auto rank = static_cast<int64_t>(operand.dimensions.size());
    buffers_[count_++] = {XLA_FFI_Buffer_STRUCT_SIZE, nullptr, operand.type, at, rank, dimensions};
    at += Aligned(operand.bytes);
    dimensions += rank;
  }
}

ExchangeBuffers StagedOperands::Buffers(const ffi::AnyBuffer& result, const ffi::AnyBuffer& base,
                                        const ffi::AnyBuffer& partition) const {
  const auto any = [&](size_t place) { return ffi::AnyBuffer(&buffers_[place]); };
  ExchangeBuffers buffers{result, any(0), base, any(1), any(2), any(3), any(4), partition, Table(&buffers_[5])};
  if (count_ == kMost) {
    buffers.indices = Indices(&buffers_[6]);
    buffers.factors = any(7);
  }
  return buffers;
}

StagedOperands* StagingPool::Lend() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) {
    all_.push_back(std::make_unique<StagedOperands>());
    free_.push_back(all_.back().get());
  }
  StagedOperands* const staged = free_.back();
  free_.pop_back();
  staged->lender_ = shared_from_this();
  return staged;
}

void StagingPool::GiveBack(StagedOperands* staged) {
  // Held until the lock is released: it may be the last that holds the pool.
  const std::shared_ptr<StagingPool> pool = std::move(staged->lender_);
  const std::lock_guard<std::mutex> lock(pool->mutex_);
  pool->free_.push_back(staged);
}

void StagedOperands::WriteTicket(void* memory) {
  const StagedOperands* const self = this;
  std::memcpy(replaced_.data(), memory, kTicketBytes);
  std::memcpy(memory, static_cast<const void*>(&self), kTicketBytes);
}

StagedOperands* StagedOperands::TakeTicket(void* memory) {
  StagedOperands* staged = nullptr;
  std::memcpy(static_cast<void*>(&staged), memory, kTicketBytes);
  std::memcpy(memory, staged->replaced_.data(), kTicketBytes);
  return staged;
}

}  // namespace fastjax::handlers
