#include "backends/gpu/nccl/library.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

#include "runtime/process_state.h"

namespace fastjax::gpu::nccl {
namespace {

constexpr const char* kInstall =
    "pip install 'jax[cuda12]' or 'jax[cuda13]' brings NCCL, and ROCm 6 or newer has RCCL; "
    "name one that lies elsewhere with FASTJAX_NCCL_LIBRARY";

std::string PathOf(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

// Loaded as it is: 2.9 was the first to give minor numbers two digits.
std::string CheckVersion(int code, Library* library) {
  const bool old = code < 10000;
  const int major = old ? code / 1000 : code / 10000;
  const int minor = old ? code % 1000 / 100 : code % 10000 / 100;
  library->name = library->path.find("rccl") == std::string::npos ? "NCCL" : "RCCL";
  library->version =
      library->name + " " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(code % 100);
  if (major == kOldestMajor && minor >= kOldestMinor) return "";
  return library->path + " is " + library->version + "; fastjax needs " + std::to_string(kOldestMajor) + "." +
         std::to_string(kOldestMinor) + " or a newer " + std::to_string(kOldestMajor) + ".x: " + kInstall;
}

std::unique_ptr<Library> Read(void* handle, const std::string& name, std::string* wrong) {
  auto library = std::make_unique<Library>();
  std::string missing;
#define FASTJAX_NCCL_FIND(type, function, arguments)                                                               \
  library->function = reinterpret_cast<decltype(library->function)>(dlsym(handle, "nccl" #function)); /* NOLINT */ \
  if (library->function == nullptr && missing.empty()) missing = "nccl" #function;
  FASTJAX_NCCL_FUNCTIONS(FASTJAX_NCCL_FIND)
#undef FASTJAX_NCCL_FIND
  int version = 0;
  if (library->GetVersion == nullptr || library->GetVersion(&version) != kSuccess) {
    *wrong = name + " is neither NCCL nor RCCL: it does not tell its version";
    return nullptr;
  }
  library->path = PathOf(reinterpret_cast<const void*>(library->GetVersion));
  *wrong = CheckVersion(version, library.get());
  if (wrong->empty() && !missing.empty()) {
    *wrong = library->path + " lacks " + missing + ", which fastjax needs: " + kInstall;
  }
  if (!wrong->empty()) return nullptr;
  return library;
}

std::unique_ptr<Library> Open(const std::vector<std::string>& names, std::string* wrong) {
  // The library is never unloaded: it has threads, and destructors of its own.
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  for (const std::string& name : names) {
    void* const handle = dlopen(name.c_str(), kFlags | RTLD_NOLOAD);
    if (handle != nullptr) return Read(handle, name, wrong);
  }
  std::string why;
  for (const std::string& name : names) {
    void* const handle = dlopen(name.c_str(), kFlags);
    if (handle != nullptr) return Read(handle, name, wrong);
    const char* const error = dlerror();  // NOLINT(concurrency-mt-unsafe): the error of this thread
    why += (why.empty() ? "" : "; ") + std::string(error == nullptr ? name : error);
  }
  *wrong = "cannot load NCCL or RCCL (" + (why.empty() ? "no name of it was given" : why) + "); " + kInstall;
  return nullptr;
}

// The libraries that the process has loaded, by the names that were tried.
struct LoadedLibraries {
  std::mutex mutex;
  std::map<std::vector<std::string>, std::unique_ptr<Library>> by_names;
};

}  // namespace

const Library* Load(const std::vector<std::string>& names, std::string* wrong) {
  auto& loaded = ProcessState<LoadedLibraries>();
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  std::unique_ptr<Library>& library = loaded.by_names[names];
  if (library == nullptr) library = Open(names, wrong);
  return library.get();
}

}  // namespace fastjax::gpu::nccl
