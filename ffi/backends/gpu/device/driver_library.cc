#include "backends/gpu/device/driver_library.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <utility>

#include "runtime/process_state.h"

namespace fastjax::gpu {
namespace {

struct Platform {
  PlatformOptions options;
  std::shared_ptr<Gpu> gpu;
};

// The platforms of the process, by name.
struct Platforms {
  std::mutex mutex;
  std::map<std::string, Platform> by_name;
};

}  // namespace

void SetOptions(const std::string& platform, PlatformOptions options) {
  auto& platforms = ProcessState<Platforms>();
  const std::lock_guard<std::mutex> lock(platforms.mutex);
  platforms.by_name[platform].options = std::move(options);
}

PlatformOptions OptionsOf(const std::string& platform) {
  auto& platforms = ProcessState<Platforms>();
  const std::lock_guard<std::mutex> lock(platforms.mutex);
  return platforms.by_name[platform].options;
}

std::shared_ptr<Gpu> OpenGpu(const std::string& platform, std::string* wrong) {
  auto& platforms = ProcessState<Platforms>();
  const std::lock_guard<std::mutex> lock(platforms.mutex);
  Platform& own = platforms.by_name[platform];
  if (own.gpu != nullptr) return own.gpu;
  const kernels::Driver* driver = platform == "cpu" ? fastjax_gpu_driver() : LoadDriver(own.options.library, wrong);
  if (driver != nullptr) own.gpu = std::make_shared<Gpu>(driver, own.options.multiprocessors);
  return own.gpu;
}

const kernels::Driver* LoadDriver(const std::string& path, std::string* wrong) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const error = dlerror();  // NOLINT(concurrency-mt-unsafe): the error of this thread
    *wrong = "cannot load fastjax's GPU library: " + std::string(error == nullptr ? path : error);
    return nullptr;
  }
  using Entry = const kernels::Driver* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kernels::kDriverSymbol));
  if (entry == nullptr) {
    *wrong = path + " is not a GPU library of fastjax's: it has no " + kernels::kDriverSymbol;
    return nullptr;
  }
  const kernels::Driver* const driver = entry();
  if (driver->version == kernels::kDriverVersion) return driver;
  *wrong = path + " is of another fastjax: its driver has version " + std::to_string(driver->version) + ", wanted " +
           std::to_string(kernels::kDriverVersion) + ". Install fastjax anew";
  return nullptr;
}

}  // namespace fastjax::gpu
