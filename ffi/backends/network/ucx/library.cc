#include "backends/network/ucx/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/process_state.h"

namespace fastjax::network::ucx {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

// What UCX reads once, while it is loaded, and would otherwise do to the whole process.
constexpr Setting kSettings[] = {
    {"UCX_HANDLE_ERRORS", "none"},  // crashes are the program's, and JAX's, to report
    {"UCX_ERROR_SIGNALS", ""},
    // Hooks into the process's malloc and munmap keep a cache of registered memory true. Where nothing is registered
    // (TCP) they are for nothing; where something is, UCX then does without the cache.
    {"UCX_MEM_EVENTS", "n"},
    {"UCX_LOG_LEVEL", "fatal"},  // what goes wrong is in our own errors
    {"UCX_VFS_ENABLE", "n"},     // a thread and a socket for a debugger
};

// Sets what the user has not set, and takes it back: other programs that this one starts should not inherit it.
void* LoadWithSettings(const std::string& name) {
  std::vector<const char*> ours;
  for (const Setting& setting : kSettings) {
    if (std::getenv(setting.name) != nullptr) continue;  // NOLINT(concurrency-mt-unsafe)
    setenv(setting.name, setting.value, 0);              // NOLINT(concurrency-mt-unsafe)
    ours.push_back(setting.name);
  }
  // UCX is never unloaded: it has threads, and destructors of its own.
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  for (const char* setting : ours) unsetenv(setting);  // NOLINT(concurrency-mt-unsafe)
  return handle;
}

std::string PathOf(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

void* Symbol(void* handle, const char* name, std::string* missing) {
  void* const symbol = dlsym(handle, name);
  if (symbol == nullptr && missing->empty()) *missing = name;
  return symbol;
}

std::string CheckVersion(const Library& library) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  library.ucp_get_version(&major, &minor, &release);
  if (major == kOldestMajor && minor >= kOldestMinor) return "";
  return library.path + " is UCX " + std::to_string(major) + "." + std::to_string(minor) + "." +
         std::to_string(release) + "; fastjax needs 1." + std::to_string(kOldestMinor) +
         " or a newer 1.x: pip install 'fastjax[ucx]'";
}

std::unique_ptr<Library> Open(const std::string& name, std::string* wrong) {
  void* const handle = LoadWithSettings(name);
  if (handle == nullptr) {
    const char* const error = dlerror();  // NOLINT(concurrency-mt-unsafe): the error of this thread
    *wrong = "cannot load UCX: " + std::string(error == nullptr ? name : error) +
             "; install it (pip install 'fastjax[ucx]'), or a UCX of the system's";
    return nullptr;
  }
  auto library = std::make_unique<Library>();
  std::string missing;
#define FASTJAX_UCX_FIND(name) \
  library->name = reinterpret_cast<decltype(library->name)>(Symbol(handle, #name, &missing));
  FASTJAX_UCX_FUNCTIONS(FASTJAX_UCX_FIND)
#undef FASTJAX_UCX_FIND
  if (library->ucp_get_version == nullptr) {
    *wrong = name + " is not UCX's libucp: it has no ucp_get_version";
    return nullptr;
  }
  library->path = PathOf(reinterpret_cast<const void*>(library->ucp_get_version));
  *wrong = CheckVersion(*library);
  if (wrong->empty() && !missing.empty()) *wrong = library->path + " lacks " + missing + ", which fastjax needs";
  if (!wrong->empty()) return nullptr;
  library->version = library->ucp_get_version_string();
  return library;
}

// The libraries that the process has loaded.
struct LoadedLibraries {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Library>> by_name;
};

}  // namespace

const Library* Load(const std::string& name, std::string* wrong) {
  auto& loaded = ProcessState<LoadedLibraries>();
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  std::unique_ptr<Library>& library = loaded.by_name[name];
  if (library == nullptr) library = Open(name, wrong);
  return library.get();
}

}  // namespace fastjax::network::ucx
