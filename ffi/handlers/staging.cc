#include "handlers/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/object_ids.h"

namespace fastjax::handlers {
namespace {

constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

bool StagedOperands::Copy(std::initializer_list<StagedOperand> operands) {
  size_t bytes = kAlignment;
  dimensions_.clear();
  for (const StagedOperand& operand : operands) {
    bytes += Aligned(operand.bytes);
    dimensions_.insert(dimensions_.end(), operand.dimensions.begin(), operand.dimensions.end());
  }
  memory_ = fastjax::StagingPool::Get().Take(static_cast<int64_t>(bytes));
  auto* at = memory_.data();
  if (at == nullptr) return false;
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
  return true;
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

StagedOperands* StagedCopies::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) {
    free_.reserve(all_.size() + 1);  // so that Return need not allocate
    all_.push_back(std::make_unique<StagedOperands>());
    all_.back()->owner_ = this;
    free_.push_back(all_.back().get());
  }
  StagedOperands* const staged = free_.back();
  free_.pop_back();
  return staged;
}

void StagedCopies::Return(StagedOperands* staged) {
  fastjax::StagingPool::Get().Return(std::move(staged->memory_));
  staged->memory_ = {};
  StagedCopies* const owner = staged->owner_;
  const std::lock_guard<std::mutex> lock(owner->mutex_);
  owner->free_.push_back(staged);
}

StagedCopies::~StagedCopies() {
  for (const auto& staged : all_) static_cast<void>(ObjectIds::Get().Take(staged->id_));
}

void StagedOperands::WriteId(void* memory) {
  id_ = ObjectIds::Get().Add(this);
  std::memcpy(replaced_.data(), memory, sizeof(id_));
  std::memcpy(memory, &id_, sizeof(id_));
}

void StagedOperands::WriteNoId(void* memory) { std::memset(memory, 0, sizeof(StagedId)); }

StagedOperands* StagedOperands::TakeById(void* memory) {
  StagedId id = 0;
  std::memcpy(&id, memory, sizeof(id));
  auto* const staged = static_cast<StagedOperands*>(ObjectIds::Get().Take(id));
  if (staged == nullptr) return nullptr;
  staged->id_ = 0;
  std::memcpy(memory, staged->replaced_.data(), sizeof(id));
  return staged;
}

}  // namespace fastjax::handlers
