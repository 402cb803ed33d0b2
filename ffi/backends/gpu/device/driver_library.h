// Loads the vendors' driver libraries, which are part of the package, when the first program for a platform is
// compiled.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_DRIVER_LIBRARY_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_DRIVER_LIBRARY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/device/gpu.h"

namespace fastjax::gpu {

struct PlatformOptions {
  std::string library;                         // the path of our own
  int32_t multiprocessors = 0;                 // that its kernels may take; 0: all
  std::vector<std::string> message_libraries;  // NCCL or RCCL: names and paths, in order of preference
};

// Sets the options of a platform ("cuda", "rocm"; "cpu", whose GPUs are emulated). To be called before its first
// program is compiled.
void SetOptions(const std::string& platform, PlatformOptions options);
PlatformOptions OptionsOf(const std::string& platform);

// The GPUs of this process: those of "cuda" or "rocm", or, for "cpu", emulated ones. Null, with the reason, if there
// are none.
std::shared_ptr<Gpu> OpenGpu(const std::string& platform, std::string* wrong);

// The driver in the library at `path`; it stays until the process ends. Null, with the reason, if it cannot be used.
const kernels::Driver* LoadDriver(const std::string& path, std::string* wrong);

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_DRIVER_LIBRARY_H_
