#include "support/gpu_driver/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "backends/gpu/device/driver_library.h"

namespace fastjax::gpu_support {

Device::Device(const std::string& path) : emulated_(path.empty()) {
  std::string wrong;
  driver_ = emulated_ ? fastjax_gpu_driver() : gpu::LoadDriver(path, &wrong);
  if (driver_ == nullptr) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::exit(1);
  }
  Must(driver_->SetDevice(0), "choose device 0");
  gpu::Gpu gpu(driver_);
  if (!gpu.MaxBlocks(0, false, &max_blocks_).ok()) Must(1, "count its multiprocessors");
  Must(driver_->CreateStream(&stream_), "make a stream");
}

// A stream goes without waiting for what is on it.
Device::~Device() {
  driver_->SynchronizeStream(stream_);
  driver_->DestroyStream(stream_);
}

void Device::Must(int code, const char* what) const {
  if (code == 0) return;
  std::fprintf(stderr, "%s device 0 cannot %s: %s (%d)\n", driver_->platform, what, driver_->ErrorText(code), code);
  std::exit(1);
}

void Device::Copy(void* dst, const void* src, size_t bytes) const {
  Must(driver_->Copy(dst, src, bytes, stream_), "copy");
}

Memory::Memory(const Device* device, size_t bytes, Place place) : device_(device), bytes_(bytes), place_(place) {
  void* data = nullptr;
  const kernels::Driver& driver = device->driver();
  const size_t least = std::max<size_t>(bytes, 1);  // vendors differ in what they make of none
  device->Must(place == Place::kDevice ? driver.Malloc(&data, least) : driver.MallocPinned(&data, least),
               "have so much memory");
  data_ = static_cast<std::byte*>(data);
}

Memory::~Memory() {
  device_->Wait();
  const kernels::Driver& driver = device_->driver();
  device_->Must(place_ == Place::kDevice ? driver.Free(data_) : driver.FreePinned(data_), "free memory");
}

void Memory::Fill(const std::vector<std::byte>& from) const {
  if (from.size() != bytes_) std::abort();
  device_->Copy(data_, from.data(), bytes_);
  device_->Wait();
}

std::vector<std::byte> Memory::Read() const {
  std::vector<std::byte> all(bytes_);
  device_->Copy(all.data(), data_, bytes_);
  device_->Wait();
  return all;
}

}  // namespace fastjax::gpu_support
