#include "kernels/emulated_gpu.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <utility>

namespace fastjax::kernels {
namespace {

thread_local int current_device = 0;
thread_local bool has_device = false;

void NeedDevice() {
  if (!std::exchange(has_device, true)) ++emulatedStrays();
}

bool IsLost(int device) { return device == emulatedFaults().lost; }

bool IsDevice(int device) { return device >= 0 && device < emulatedDevices; }

std::array<std::array<bool, emulatedDevices>, emulatedDevices> peers{};
std::mutex peers_mutex;

// Whether it had not been loaded for the current device.
bool Load(const void* kernel) {
  static auto* const loaded = new std::set<std::pair<int, const void*>>;  // streams may run as the process ends
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  return loaded->insert({current_device, kernel}).second;
}

}  // namespace

struct EmulatedEvent {
  std::shared_future<void> Last() {
    const std::lock_guard<std::mutex> lock(mutex);
    return last;
  }

  const int device = current_device;
  std::mutex mutex;
  std::shared_future<void> last;  // record, once it is reached; none yet: not valid
};

struct EmulatedStream {
  void Push(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex);
    tasks.push_back(std::move(task));
    changed.notify_all();  // while it is locked: the last task ends the stream's life
  }

  // Becomes ready when all that is queued now is done.
  std::shared_future<void> Record() {
    auto reached = std::make_shared<std::promise<void>>();
    std::shared_future<void> record = reached->get_future().share();
    Push([reached = std::move(reached)] { reached->set_value(); });
    return record;
  }

  // Until it comes to an empty task.
  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !tasks.empty(); });
      const std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      if (task == nullptr) return;
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const int device = current_device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
};

EmulatedFaults& emulatedFaults() {
  static auto* const faults = new EmulatedFaults;  // streams may run as the process ends
  return *faults;
}

const char* emulatedGetErrorString(emulatedError_t error) {
  switch (error) {
    case emulatedSuccess:
      return "no error";
    case emulatedErrorInvalidValue:
      return "invalid argument";
    case emulatedErrorMemoryAllocation:
      return "out of memory";
    case emulatedErrorInvalidConfiguration:
      return "invalid configuration argument";
    case emulatedErrorInvalidDevice:
      return "invalid device ordinal";
    case emulatedErrorInvalidResourceHandle:
      return "invalid resource handle";
    case emulatedErrorNotReady:
      return "device not ready";
    case emulatedErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case emulatedErrorPeerAccessAlreadyEnabled:
      return "peer access is already enabled";
  }
  return "unknown error";
}

emulatedError_t emulatedGetLastError() { return emulatedSuccess; }

emulatedError_t emulatedGetDeviceCount(int* count) {
  *count = emulatedDevices;
  return emulatedSuccess;
}

emulatedError_t emulatedGetDevice(int* device) {
  *device = current_device;
  return emulatedSuccess;
}

emulatedError_t emulatedSetDevice(int device) {
  if (!IsDevice(device)) return emulatedErrorInvalidDevice;
  current_device = device;
  has_device = true;
  return emulatedSuccess;
}

bool emulatedHasDevice() { return has_device; }

void emulatedLeaveDevice() {
  current_device = 0;
  has_device = false;
}

std::atomic<int64_t>& emulatedStrays() {
  static std::atomic<int64_t> strays{0};
  return strays;
}

emulatedError_t emulatedDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != emulatedDevAttrMultiProcessorCount) return emulatedErrorInvalidValue;
  if (!IsDevice(device)) return emulatedErrorInvalidDevice;
  *value = 2;  // the host runs a grid's threads one after the other
  return emulatedSuccess;
}

emulatedError_t emulatedDeviceCanAccessPeer(int* possible, int device, int peer) {
  if (!IsDevice(device) || !IsDevice(peer)) return emulatedErrorInvalidDevice;
  *possible = device != peer ? 1 : 0;
  return emulatedSuccess;
}

emulatedError_t emulatedDeviceEnablePeerAccess(int peer, unsigned flags) {
  NeedDevice();
  if (flags != 0) return emulatedErrorInvalidValue;
  if (!IsDevice(peer) || peer == current_device) return emulatedErrorInvalidDevice;
  const std::lock_guard<std::mutex> lock(peers_mutex);
  bool& enabled = peers[static_cast<size_t>(current_device)][static_cast<size_t>(peer)];
  return std::exchange(enabled, true) ? emulatedErrorPeerAccessAlreadyEnabled : emulatedSuccess;
}

emulatedError_t emulatedMalloc(void** memory, size_t bytes) {
  NeedDevice();
  *memory = std::malloc(std::max<size_t>(bytes, 1));
  return *memory == nullptr ? emulatedErrorMemoryAllocation : emulatedSuccess;
}

emulatedError_t emulatedFree(void* memory) {
  std::free(memory);
  return emulatedSuccess;
}

emulatedError_t emulatedHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  NeedDevice();
  return current_device == emulatedFaults().pinned ? emulatedErrorMemoryAllocation : emulatedMalloc(memory, bytes);
}

emulatedError_t emulatedFreeHost(void* memory) {
  NeedDevice();
  return emulatedFree(memory);
}

emulatedError_t emulatedStreamCreateWithFlags(emulatedStream_t* stream, unsigned /*flags*/) {
  NeedDevice();
  try {
    auto made = std::make_unique<EmulatedStream>();
    // The thread outlives the handle, which may be destroyed while there is work to do, and is then the owner.
    std::thread([running = made.get()] {
      running->Run();
      delete running;
    }).detach();
    *stream = made.release();
  } catch (const std::exception&) {  // no memory, or no more threads
    return emulatedErrorMemoryAllocation;
  }
  return emulatedSuccess;
}

// Returns at once, as on a GPU: what is queued is still done, and nobody has waited for it.
emulatedError_t emulatedStreamDestroy(emulatedStream_t stream) {
  NeedDevice();
  stream->Push(nullptr);
  return emulatedSuccess;
}

emulatedError_t emulatedStreamSynchronize(emulatedStream_t stream) {
  NeedDevice();
  stream->Record().wait();
  return IsLost(stream->device) ? emulatedErrorIllegalAddress : emulatedSuccess;
}

// Waits for the last record before this call, and not at all if there was none, as CUDA and HIP do.
emulatedError_t emulatedStreamWaitEvent(emulatedStream_t stream, emulatedEvent_t event, unsigned /*flags*/) {
  NeedDevice();
  if (auto record = event->Last(); record.valid()) stream->Push([record = std::move(record)] { record.wait(); });
  return emulatedSuccess;
}

emulatedError_t emulatedEventCreateWithFlags(emulatedEvent_t* event, unsigned /*flags*/) {
  NeedDevice();
  *event = new (std::nothrow) EmulatedEvent;
  return *event == nullptr ? emulatedErrorMemoryAllocation : emulatedSuccess;
}

emulatedError_t emulatedEventDestroy(emulatedEvent_t event) {
  NeedDevice();
  delete event;
  return emulatedSuccess;
}

emulatedError_t emulatedEventRecord(emulatedEvent_t event, emulatedStream_t stream) {
  NeedDevice();
  if (event->device != stream->device) return emulatedErrorInvalidResourceHandle;
  if (IsLost(stream->device)) return emulatedErrorIllegalAddress;
  const std::lock_guard<std::mutex> lock(event->mutex);
  event->last = stream->Record();
  return emulatedSuccess;
}

emulatedError_t emulatedEventSynchronize(emulatedEvent_t event) {
  NeedDevice();
  if (const auto record = event->Last(); record.valid()) record.wait();
  return emulatedSuccess;
}

emulatedError_t emulatedEventQuery(emulatedEvent_t event) {
  NeedDevice();
  const auto record = event->Last();
  const bool reached = !record.valid() || record.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return reached ? emulatedSuccess : emulatedErrorNotReady;
}

emulatedError_t emulatedMemcpyAsync(void* dst, const void* src, size_t bytes, int /*kind*/, emulatedStream_t stream) {
  NeedDevice();
  if (IsLost(stream->device)) return emulatedErrorIllegalAddress;
  if (bytes > 0) stream->Push([=] { std::memcpy(dst, src, bytes); });
  return emulatedSuccess;
}

emulatedError_t emulatedLaunchHostFunc(emulatedStream_t stream, void (*function)(void*), void* data) {
  NeedDevice();
  stream->Push([=] { function(data); });
  return emulatedSuccess;
}

std::atomic<int64_t>& emulatedLazyLoads() {
  static std::atomic<int64_t> loads{0};
  return loads;
}

emulatedError_t emulatedLoad(const void* kernel) {
  NeedDevice();
  Load(kernel);
  return emulatedSuccess;
}

emulatedError_t emulatedLaunch(emulatedStream_t stream, const void* kernel, int blocks, std::function<void()> work) {
  NeedDevice();
  if (blocks <= 0) return emulatedErrorInvalidConfiguration;
  // Copies may be queued from any device, kernels from their own only.
  if (stream->device != current_device) return emulatedErrorInvalidResourceHandle;
  if (IsLost(stream->device)) return emulatedErrorIllegalAddress;
  if (Load(kernel)) ++emulatedLazyLoads();
  stream->Push(std::move(work));
  return emulatedSuccess;
}

}  // namespace fastjax::kernels
