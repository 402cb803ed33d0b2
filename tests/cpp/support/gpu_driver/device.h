// A device of a driver, for programs that end at the first call that fails: nothing after it would mean anything.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_GPU_DRIVER_DEVICE_H_
#define FASTJAX_TESTS_CPP_SUPPORT_GPU_DRIVER_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/driver.h"

namespace fastjax::gpu_support {

// The first device of the driver in the library at `path`, or of the emulated one if `path` is empty.
class Device {
 public:
  explicit Device(const std::string& path);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const kernels::Driver& driver() const { return *driver_; }
  kernels::Stream stream() const { return stream_; }
  bool emulated() const { return emulated_; }
  int32_t max_blocks() const { return max_blocks_; }  // that the transport launches

  // Ends the program unless `code` is that of success.
  void Must(int code, const char* what) const;
  void Wait() const { Must(driver_->SynchronizeStream(stream_), "wait for the stream"); }
  void Copy(void* dst, const void* src, size_t bytes) const;  // on the stream

 private:
  const kernels::Driver* driver_ = nullptr;
  bool emulated_ = false;
  int32_t max_blocks_ = 0;
  kernels::Stream stream_ = nullptr;
};

// Memory of the device, or pinned memory of the host.
class Memory {
 public:
  enum class Place { kDevice, kHost };

  Memory(const Device* device, size_t bytes, Place place = Place::kDevice);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Copies all of it, waiting for it.
  void Fill(const std::vector<std::byte>& from) const;
  std::vector<std::byte> Read() const;

 private:
  const Device* const device_;
  const size_t bytes_;
  const Place place_;
  std::byte* data_ = nullptr;
};

// A list as kernels read it: in memory of the device.
template <typename T>
class DeviceList {
 public:
  DeviceList(const Device* device, const std::vector<T>& list) : memory_(device, list.size() * sizeof(T)) {
    if (list.empty()) return;  // what a vendor makes of a copy from nowhere is not asked
    device->Copy(memory_.data(), list.data(), list.size() * sizeof(T));
    device->Wait();
  }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }

 private:
  Memory memory_;
};

}  // namespace fastjax::gpu_support

#endif  // FASTJAX_TESTS_CPP_SUPPORT_GPU_DRIVER_DEVICE_H_
