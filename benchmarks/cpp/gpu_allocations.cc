#include "gpu_allocations.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "backends/gpu/device/driver_library.h"
#include "kernels/driver.h"

namespace {

using fastjax::kernels::Allocation;
using fastjax::kernels::Driver;
using fastjax::kernels::MemoryHandle;
using fastjax::kernels::Stream;

constexpr std::string_view kDigits = "0123456789abcdef";

const char* Kept(std::string text) {
  static thread_local std::string last;
  last = std::move(text);
  return last.c_str();
}

std::string Line(const std::string& name, const std::string& value) { return name + " " + value + "\n"; }

std::string Hex(const void* data, size_t bytes) {
  std::string digits;
  for (size_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<const unsigned char*>(data)[i];
    digits += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return digits;
}

// False if these are not so many bytes in hexadecimal digits.
bool FromHex(std::string_view digits, void* data, size_t bytes) {
  if (digits.size() != 2 * bytes) return false;
  for (size_t i = 0; i < bytes; ++i) {
    const size_t high = kDigits.find(digits[2 * i]);
    const size_t low = kDigits.find(digits[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    static_cast<unsigned char*>(data)[i] = static_cast<unsigned char>(16 * high + low);
  }
  return true;
}

// Device 0 of a driver, and the first thing of it that failed.
class Device {
 public:
  explicit Device(const std::string& library)
      : driver_(library.empty() ? fastjax_gpu_driver() : fastjax::gpu::LoadDriver(library, &error_)) {
    if (driver_ != nullptr) Did(driver_->SetDevice(0), "choose device 0");
  }
  const Driver& driver() const { return *driver_; }
  bool ok() const { return error_.empty(); }
  std::string error() const { return ok() ? "" : Line("error", error_); }
  // Whether it worked.
  bool Did(int code, const char* what) {
    if (code != 0) {
      error_ = std::string("cannot ") + what + ": " + driver_->ErrorText(code) + " (" + std::to_string(code) + ")";
    }
    return code == 0;
  }

 private:
  std::string error_;
  const Driver* const driver_;
};

std::string Find(Device* device, const void* address) {
  Allocation found;
  if (!device->ok() || !device->Did(device->driver().FindAllocation(&found, address), "find its allocation")) return "";
  const auto offset = static_cast<const std::byte*>(address) - found.base;
  const std::string lines = Line("bytes", std::to_string(found.bytes)) + Line("offset", std::to_string(offset));
  MemoryHandle handle;
  if (!device->Did(device->driver().ExportMemory(&handle, found.base), "export its allocation")) return lines;
  return lines + Line("handle", Hex(handle.words, sizeof(handle.words)));
}

void Copy(Device* device, const void* from, std::vector<std::byte>* to) {
  const Driver& driver = device->driver();
  void* host = nullptr;
  Stream stream = nullptr;
  if (!device->Did(driver.MallocPinned(&host, to->size()), "have memory of the host")) return;
  if (device->Did(driver.CreateStream(&stream), "make a stream")) {
    if (device->Did(driver.Copy(host, from, to->size(), stream), "read the allocation") &&
        device->Did(driver.SynchronizeStream(stream), "wait until the allocation is read")) {
      std::memcpy(to->data(), host, to->size());
    }
    driver.DestroyStream(stream);
  }
  driver.FreePinned(host);
}

std::string Read(Device* device, const MemoryHandle& handle, uint64_t offset, uint64_t bytes) {
  void* base = nullptr;
  if (!device->ok() || !device->Did(device->driver().OpenMemory(&base, &handle), "open the allocation")) return "";
  std::vector<std::byte> data(bytes);
  Copy(device, static_cast<const std::byte*>(base) + offset, &data);
  const std::string lines = device->ok() ? Line("data", Hex(data.data(), data.size())) : "";
  if (device->ok()) device->Did(device->driver().CloseMemory(base), "close the allocation");
  return lines;
}

}  // namespace

const char* fastjax_find_allocation(const char* library, const void* address) {
  Device device(library);
  const std::string lines = Find(&device, address);
  return Kept(lines + device.error());
}

const char* fastjax_read_allocation(const char* library, const char* handle, uint64_t offset, uint64_t bytes) {
  MemoryHandle wanted;
  if (!FromHex(handle, wanted.words, sizeof(wanted.words))) return Kept(Line("error", "that is no handle"));
  Device device(library);
  const std::string lines = Read(&device, wanted, offset, bytes);
  return Kept(lines + device.error());
}
