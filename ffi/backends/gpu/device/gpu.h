// Declares Gpu: the GPUs of this process, used through a vendor's driver. It turns error codes into text, and owns
// events and memory, which it keeps for reuse, since making them would stop the devices.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_GPU_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_GPU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exchange/status.h"
#include "kernels/driver.h"

namespace fastjax::gpu {

// Where memory lies: on the host, where devices copy from and to without the help of a processor, or on a device, where
// XLA's allocator does not know it.
enum class Place { kPinned, kDevice };

// Memory that is used again once a device has used it.
struct Kept {
  std::byte* data = nullptr;
  size_t bytes = 0;
  kernels::Event used = nullptr;  // its last use, on a stream
};

// The streams of a device beside XLA's, and in its place where the device is emulated.
enum class Beside { kMessages, kExchanges, kInPlace };

// An exchange on the stream for exchanges, from its start to its done.
struct Flight {
  int64_t run_id = 0;                  // of the program that started it
  std::array<const void*, 2> reads{};  // arrays that it reads, as long as it lasts
  kernels::Event end = nullptr;
};

// What exchanges have put on streams.
struct Tally {
  int64_t exchanges = 0;
  int64_t kernels = 0;   // launches that move or add up rows
  int64_t messages = 0;  // that devices here send to those whose memory they cannot reach
  // Bytes. What is packed, sent and unpacked counts three times.
  int64_t packed = 0;
  int64_t sent = 0;
  int64_t copied = 0;  // straight from one device's memory to another's
  int64_t unpacked = 0;
  int64_t summed = 0;  // that are the result of sums
};

class Gpu {
 public:
  // The driver must outlive all use. `multiprocessors`: how many of a device's the kernels may take; 0: all.
  explicit Gpu(const kernels::Driver* driver, int32_t multiprocessors = 0)
      : driver_(driver), multiprocessors_(multiprocessors) {}
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const kernels::Driver& driver() const { return *driver_; }
  std::string Name(int32_t device) const;  // "CUDA device 0"
  // Ok for code 0; otherwise what could not be done, and why.
  Status Check(int code, int32_t device, const char* what) const;

  // For threads of ours, which have no device unless they choose one. What they ask of events, they can ask with any.
  void NeedDevice(int32_t device) const;

  // Lets kernels on `device` touch memory of `peer`.
  Status EnablePeer(int32_t device, int32_t peer, bool* possible);
  // The most blocks of a kernel that are worth launching; `beside`: while the device computes something else.
  Status MaxBlocks(int32_t device, bool beside, int32_t* blocks);

  // Loads the kernels, once for each device: before the first of its kernels is launched.
  Status LoadKernels(int32_t device);

  // An event of the device, to be given back once all that waits for it has been put on streams.
  Status TakeEvent(int32_t device, kernels::Event* event);
  void ReturnEvent(int32_t device, kernels::Event event);

  Status SideStream(int32_t device, Beside which, kernels::Stream* stream);
  // Held by the thread that puts an exchange with messages on streams, for all devices of the exchange in order, from
  // its first message to its last. Side streams are shared: with exchanges mixed, one device could wait for a message
  // of the first, and its peer, before it sends that, for one of the second.
  std::mutex& message_mutex(int32_t device);

  // What starts and dones agree on, whose handlers cannot read a token: an exchange is known by where its rows are;
  // null for all that have none. Adds the one whose work has just been put on its stream; on an error it has ended.
  Status AddFlight(int32_t device, const void* rows, Flight flight);
  // Has `stream` wait for the end of an exchange, and forgets it. `kept`: the arrays that XLA has kept for it. On an
  // error, all exchanges of the device have ended.
  Status EndFlight(int32_t device, const void* rows, const std::vector<const void*>& kept, kernels::Stream stream);
  // Waits until the exchanges of a program that has failed have ended, and forgets them: XLA takes the memory back.
  void DropFlights(int32_t device, int64_t run_id);

  // Adds an exchange to the counters of all exchanges so far. Thread-safe.
  void Count(const Tally& exchange);
  Tally tally();

  Status Take(int32_t device, Place place, size_t bytes, Kept* kept);
  // Others may use it as soon as what is on the stream now has happened; at once where there is no stream.
  void Return(int32_t device, Place place, Kept kept, kernels::Stream stream);

 private:
  Status Await(int32_t device, const void* rows, const std::vector<const void*>& kept, kernels::Stream stream);

  struct Device {
    std::vector<kernels::Event> events;
    std::array<std::vector<Kept>, 2> kept;   // by Place
    std::vector<int8_t> peers;               // by device: -1 not possible, 0 not known, 1 enabled
    std::array<kernels::Stream, 3> sides{};  // by Beside
    std::map<const void*, Flight> flights;
    int32_t multiprocessors = 0;  // 0: not known
    std::mutex loading;           // held while the kernels are loaded
    bool loaded = false;          // guarded by it
    std::mutex messages;
  };

  Device& At(int32_t device);
  // Of what no device uses any more, the one whose size is nearest to `bytes`: of those that are large enough, so that
  // large ones are left for whoever needs them, or of those that are not.
  bool TakeFree(int32_t device, Place place, size_t bytes, bool enough, Kept* kept);
  void Free(Place place, const std::vector<Kept>& kept);

  const kernels::Driver* const driver_;
  const int32_t multiprocessors_;
  std::mutex mutex_;
  Tally tally_;
  std::vector<std::unique_ptr<Device>> devices_;
};

// Chooses a device for the calling thread, and at its end the one before, or none again: the thread is XLA's, or
// anybody's.
class DeviceScope {
 public:
  explicit DeviceScope(const Gpu& gpu) : gpu_(gpu) { known_ = gpu_.driver().GetDevice(&before_) == 0; }
  ~DeviceScope() {
    if (known_) gpu_.driver().SetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  Status Choose(int32_t device) { return gpu_.Check(gpu_.driver().SetDevice(device), device, "be chosen"); }

 private:
  const Gpu& gpu_;
  int before_ = kernels::kNoDevice;
  bool known_ = false;
};

// Memory for one call on a stream that is not the one of XLA's memory. XLA takes back what a handler got of its memory
// when the handler returns, and may give it to anything that is ordered behind its stream of computation. Work on
// another stream may still use it then. What is got here is kept until the call's stream has come to where it was when
// this ended.
class CallMemory {
 public:
  CallMemory(Gpu* gpu, int32_t device, kernels::Stream stream) : gpu_(gpu), device_(device), stream_(stream) {}
  ~CallMemory() {
    for (const Kept& kept : taken_) gpu_->Return(device_, Place::kDevice, kept, stream_);
  }
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  // Null if the device has none left.
  std::byte* Allocate(size_t bytes) {
    taken_.emplace_back();  // first, since it may throw
    return gpu_->Take(device_, Place::kDevice, bytes, &taken_.back()).ok() ? taken_.back().data : nullptr;
  }

 private:
  Gpu* const gpu_;
  const int32_t device_;
  const kernels::Stream stream_;
  std::vector<Kept> taken_;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_GPU_H_
