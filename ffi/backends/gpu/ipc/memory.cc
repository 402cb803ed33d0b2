#include "backends/gpu/ipc/memory.h"

#include <algorithm>
#include <iterator>

namespace fastjax::gpu::ipc {
namespace {

bool Same(const kernels::MemoryHandle& a, const kernels::MemoryHandle& b) {
  return std::equal(std::begin(a.words), std::end(a.words), std::begin(b.words));
}

bool Same(const SharedAllocation& a, const SharedAllocation& b) {
  return a.id == b.id && a.bytes == b.bytes && Same(a.handle, b.handle);
}

bool Overlap(const SharedAllocation& a, const SharedAllocation& b) {
  return a.base < b.base + b.bytes && b.base < a.base + a.bytes;
}

}  // namespace

Memory::~Memory() {
  DeviceScope scope(*gpu_);
  for (const auto& [key, imported] : imported_) {
    if (scope.Choose(std::get<0>(key)).ok()) gpu_->driver().CloseMemory(imported.base);
  }
}

Status Memory::Export(int32_t device, const void* address, SharedAllocation* shared) {
  DeviceScope scope(*gpu_);
  if (Status status = scope.Choose(device); !status.ok()) return status;
  kernels::Allocation allocation;
  int code = gpu_->driver().FindAllocation(&allocation, address);
  if (code != 0) return gpu_->Check(code, device, "find the allocation that a buffer is in");
  *shared = {reinterpret_cast<uintptr_t>(allocation.base), allocation.bytes, allocation.id, {}};
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = exported_.find({device, shared->base});
  if (found != exported_.end() && found->second.id == shared->id) {
    shared->handle = found->second.handle;
    return Status::Ok();
  }
  code = gpu_->driver().ExportMemory(&shared->handle, allocation.base);
  if (code != 0) return gpu_->Check(code, device, "share an allocation with other processes");
  exported_[{device, shared->base}] = {shared->id, shared->handle};
  return Status::Ok();
}

Status Memory::Import(int32_t device, int32_t process, const SharedAllocation& shared, std::byte** base) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = imported_.find({device, process, shared.base});
  if (found != imported_.end() && Same(found->second.shared, shared)) {
    *base = found->second.base;
    return Status::Ok();
  }
  DeviceScope scope(*gpu_);
  if (Status status = scope.Choose(device); !status.ok()) return status;
  CloseStale(device, process, shared);
  void* opened = nullptr;
  const int code = gpu_->driver().OpenMemory(&opened, &shared.handle);
  if (code != 0) return gpu_->Check(code, device, "open memory of another process");
  *base = static_cast<std::byte*>(opened);
  imported_[{device, process, shared.base}] = {shared, *base};
  return Status::Ok();
}

// What is gone there must be closed before what took its place is opened. Nobody uses it: its owner could not give it
// back before the exchanges that did were over.
void Memory::CloseStale(int32_t device, int32_t process, const SharedAllocation& shared) {
  auto it = imported_.lower_bound({device, process, 0});
  while (it != imported_.end() && std::get<0>(it->first) == device && std::get<1>(it->first) == process) {
    if (!Overlap(it->second.shared, shared)) {
      ++it;
      continue;
    }
    gpu_->driver().CloseMemory(it->second.base);
    it = imported_.erase(it);
  }
}

}  // namespace fastjax::gpu::ipc
