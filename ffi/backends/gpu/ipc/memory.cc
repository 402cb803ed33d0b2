#include "backends/gpu/ipc/memory.h"

#include <algorithm>
#include <iterator>

namespace fastjax::gpu::ipc {
namespace {

bool Same(const kernels::MemoryHandle& a, const kernels::MemoryHandle& b) {
  return std::equal(std::begin(a.words), std::end(a.words), std::begin(b.words));
}

bool Same(const Loan& a, const Loan& b) { return a.id == b.id && a.bytes == b.bytes && Same(a.handle, b.handle); }

bool Overlap(const Loan& a, const Loan& b) { return a.base < b.base + b.bytes && b.base < a.base + a.bytes; }

}  // namespace

Memory::~Memory() {
  DeviceScope scope(*gpu_);
  for (const auto& [key, borrowed] : borrowed_) {
    if (scope.Choose(std::get<0>(key)).ok()) gpu_->driver().CloseMemory(borrowed.base);
  }
}

Status Memory::Lend(int32_t device, const void* address, Loan* loan) {
  DeviceScope scope(*gpu_);
  if (Status status = scope.Choose(device); !status.ok()) return status;
  kernels::Allocation allocation;
  int code = gpu_->driver().FindAllocation(&allocation, address);
  if (code != 0) return gpu_->Check(code, device, "find the allocation that a buffer is in");
  *loan = {reinterpret_cast<uintptr_t>(allocation.base), allocation.bytes, allocation.id, {}};
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = lent_.find({device, loan->base});
  if (found != lent_.end() && found->second.id == loan->id) {
    loan->handle = found->second.handle;
    return Status::Ok();
  }
  code = gpu_->driver().ExportMemory(&loan->handle, allocation.base);
  if (code != 0) return gpu_->Check(code, device, "share an allocation with other processes");
  lent_[{device, loan->base}] = {loan->id, loan->handle};
  return Status::Ok();
}

Status Memory::Borrow(int32_t device, int32_t process, const Loan& loan, std::byte** base) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = borrowed_.find({device, process, loan.base});
  if (found != borrowed_.end() && Same(found->second.loan, loan)) {
    *base = found->second.base;
    return Status::Ok();
  }
  DeviceScope scope(*gpu_);
  if (Status status = scope.Choose(device); !status.ok()) return status;
  CloseStale(device, process, loan);
  void* opened = nullptr;
  const int code = gpu_->driver().OpenMemory(&opened, &loan.handle);
  if (code != 0) return gpu_->Check(code, device, "open memory of another process");
  *base = static_cast<std::byte*>(opened);
  borrowed_[{device, process, loan.base}] = {loan, *base};
  return Status::Ok();
}

// What is gone there must be closed before what took its place is opened. Nobody uses it: its owner could not give it
// back before the exchanges that did were over.
void Memory::CloseStale(int32_t device, int32_t process, const Loan& loan) {
  auto it = borrowed_.lower_bound({device, process, 0});
  while (it != borrowed_.end() && std::get<0>(it->first) == device && std::get<1>(it->first) == process) {
    if (!Overlap(it->second.loan, loan)) {
      ++it;
      continue;
    }
    gpu_->driver().CloseMemory(it->second.base);
    it = borrowed_.erase(it);
  }
}

}  // namespace fastjax::gpu::ipc
