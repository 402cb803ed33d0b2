#include "backends/gpu/device/gpu.h"

#include <algorithm>
#include <utility>

namespace fastjax::gpu {
namespace {

constexpr size_t kLeastBytes = 64 << 10;

// Exchanges beside what computes take so many multiprocessors unless they are told how many. On an H200 they copy 1.1
// TB/s, 0.9 of what all 132 do and more than NVLink carries, and the others are left to the experts.
constexpr int32_t kMultiprocessorsBeside = 32;

// To an eighth of the power of two below: sizes that differ little share memory, and little of it is never used.
size_t RoundUp(size_t bytes) {
  size_t power = kLeastBytes;
  while (power <= bytes / 2) power *= 2;
  const size_t step = power / 8;
  return std::max(kLeastBytes, (bytes + step - 1) / step * step);
}

}  // namespace

Gpu::~Gpu() {
  DeviceScope scope(*this);
  for (size_t i = 0; i < devices_.size(); ++i) {
    const auto& device = devices_[i];
    const auto& [pinned, memory] = device->kept;
    const bool any = !device->events.empty() || !pinned.empty() || !memory.empty();
    if (!any && device->sides == decltype(device->sides){}) continue;
    static_cast<void>(scope.Choose(static_cast<int32_t>(i)));
    for (const auto& [rows, flight] : device->flights) driver_->DestroyEvent(flight.end);
    for (kernels::Event event : device->events) driver_->DestroyEvent(event);
    Free(Place::kPinned, pinned);
    Free(Place::kDevice, memory);
    for (kernels::Stream side : device->sides) {
      if (side != nullptr) driver_->DestroyStream(side);
    }
  }
}

void Gpu::Free(Place place, const std::vector<Kept>& kept) {
  for (const Kept& one : kept) {
    if (one.used != nullptr) {
      driver_->SynchronizeEvent(one.used);
      driver_->DestroyEvent(one.used);
    }
    place == Place::kPinned ? driver_->FreePinned(one.data) : driver_->Free(one.data);
  }
}

std::string Gpu::Name(int32_t device) const {
  return std::string(driver_->platform) + " device " + std::to_string(device);
}

Status Gpu::Check(int code, int32_t device, const char* what) const {
  if (code == 0) return Status::Ok();
  const char* const text = driver_->ErrorText(code);
  return Status::Internal("fastjax: " + Name(device) + " could not " + what + ": " +
                          (text == nullptr ? "unknown error" : text) + " (" + std::to_string(code) + ").");
}

Gpu::Device& Gpu::At(int32_t device) {
  const auto at = static_cast<size_t>(device);
  while (devices_.size() <= at) devices_.push_back(std::make_unique<Device>());
  return *devices_[at];
}

void Gpu::NeedDevice(int32_t device) const {
  int own = kernels::kNoDevice;
  if (driver_->GetDevice(&own) == 0 && own == kernels::kNoDevice) driver_->SetDevice(device);
}

Status Gpu::EnablePeer(int32_t device, int32_t peer, bool* possible) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int8_t>& peers = At(device).peers;
  if (peers.size() <= static_cast<size_t>(peer)) peers.resize(static_cast<size_t>(peer) + 1, 0);
  int8_t& known = peers[static_cast<size_t>(peer)];
  if (known == 0) {
    DeviceScope scope(*this);
    if (Status status = scope.Choose(device); !status.ok()) return status;
    int can = 0;
    const int code = driver_->EnablePeer(peer, &can);
    if (code != 0) return Check(code, device, "enable access to its peers");
    known = can != 0 ? int8_t{1} : int8_t{-1};
  }
  *possible = known > 0;
  return Status::Ok();
}

Status Gpu::MaxBlocks(int32_t device, bool beside, int32_t* blocks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int32_t& known = At(device).multiprocessors;
  if (known == 0) {
    int count = 0;
    const int code = driver_->CountMultiprocessors(&count, device);
    if (code != 0) return Check(code, device, "count its multiprocessors");
    known = std::max(1, count);
  }
  int32_t count = known;
  if (multiprocessors_ > 0) {
    count = std::min(count, multiprocessors_);
  } else if (beside) {
    count = std::min(count, kMultiprocessorsBeside);
  }
  *blocks = count * (kernels::kMultiprocessorThreads / kernels::kBlockThreads);
  return Status::Ok();
}

Status Gpu::LoadKernels(int32_t device) {
  Device* own = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    own = &At(device);
  }
  // Loading may wait for what is on the device's streams, and that for another device whose exchange is still to be put
  // there: nobody else's lock may be held meanwhile.
  const std::lock_guard<std::mutex> lock(own->loading);
  if (own->loaded) return Status::Ok();
  DeviceScope scope(*this);
  if (Status status = scope.Choose(device); !status.ok()) return status;
  const int code = driver_->LoadKernels();
  own->loaded = code == 0;
  return Check(code, device, "load its kernels");
}

Status Gpu::TakeEvent(int32_t device, kernels::Event* event) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<kernels::Event>& events = At(device).events;
    if (!events.empty()) {
      *event = events.back();
      events.pop_back();
      return Status::Ok();
    }
  }
  DeviceScope scope(*this);
  if (Status status = scope.Choose(device); !status.ok()) return status;
  return Check(driver_->CreateEvent(event), device, "make an event");
}

void Gpu::ReturnEvent(int32_t device, kernels::Event event) {
  if (event == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  At(device).events.push_back(event);
}

Status Gpu::SideStream(int32_t device, Beside which, kernels::Stream* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kernels::Stream& side = At(device).sides[static_cast<size_t>(which)];
  if (side == nullptr) {
    DeviceScope scope(*this);
    if (Status status = scope.Choose(device); !status.ok()) return status;
    const int code = driver_->CreateStream(&side);
    if (code != 0) return Check(code, device, "make a stream");
  }
  *stream = side;
  return Status::Ok();
}

std::mutex& Gpu::message_mutex(int32_t device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return At(device).messages;
}

void Gpu::Count(const Tally& exchange) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tally_.exchanges += exchange.exchanges;
  tally_.kernels += exchange.kernels;
  tally_.messages += exchange.messages;
  tally_.packed += exchange.packed;
  tally_.sent += exchange.sent;
  tally_.copied += exchange.copied;
  tally_.unpacked += exchange.unpacked;
  tally_.summed += exchange.summed;
}

Tally Gpu::tally() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return tally_;
}

Status Gpu::Take(int32_t device, Place place, size_t bytes, Kept* kept) {
  if (TakeFree(device, place, bytes, true, kept)) return Status::Ok();
  DeviceScope scope(*this);
  if (Status status = scope.Choose(device); !status.ok()) return status;
  void* memory = nullptr;
  const size_t rounded = RoundUp(bytes);
  const bool pinned = place == Place::kPinned;
  const int code = pinned ? driver_->MallocPinned(&memory, rounded) : driver_->Malloc(&memory, rounded);
  if (code != 0) return Check(code, device, pinned ? "get pinned memory of the host" : "get memory");
  // It replaces a smaller one: what is kept does not grow with the number of sizes.
  if (Kept smaller; TakeFree(device, place, bytes, false, &smaller)) Free(place, {smaller});
  *kept = {static_cast<std::byte*>(memory), rounded, nullptr};
  return Status::Ok();
}

bool Gpu::TakeFree(int32_t device, Place place, size_t bytes, bool enough, Kept* kept) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Kept>& free = At(device).kept[static_cast<size_t>(place)];
  const auto is_free = [this](const Kept& one) {
    int reached = 1;
    return one.used == nullptr || (driver_->QueryEvent(one.used, &reached) == 0 && reached != 0);
  };
  auto best = free.end();
  for (auto one = free.begin(); one != free.end(); ++one) {
    if ((one->bytes >= bytes) != enough || !is_free(*one)) continue;
    if (best == free.end() || (one->bytes < best->bytes) == enough) best = one;
  }
  if (best == free.end()) return false;
  *kept = *best;
  free.erase(best);
  return true;
}

void Gpu::Return(int32_t device, Place place, Kept kept, kernels::Stream stream) {
  if (kept.data == nullptr) return;
  if (stream != nullptr) {
    if (kept.used == nullptr && !TakeEvent(device, &kept.used).ok()) kept.used = nullptr;
    if (kept.used == nullptr || driver_->RecordEvent(kept.used, stream) != 0) {
      driver_->SynchronizeStream(stream);  // so that it is free in any case
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  At(device).kept[static_cast<size_t>(place)].push_back(kept);
}

}  // namespace fastjax::gpu
