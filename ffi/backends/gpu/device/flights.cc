// Exchanges between their start and their done.
#include <algorithm>
#include <utility>

#include "backends/gpu/device/gpu.h"

namespace fastjax::gpu {

// Exchanges follow each other on their stream. So one that takes the place of another, whose done never came, writes
// its rows after that one, and whoever waits for the last of those without rows waits for all of them.
Status Gpu::AddFlight(int32_t device, const void* rows, Flight flight) {
  kernels::Stream stream = nullptr;
  DeviceScope scope(*this);
  Status status = SideStream(device, Beside::kExchanges, &stream);
  if (status.ok()) status = scope.Choose(device);
  if (status.ok()) status = TakeEvent(device, &flight.end);
  if (status.ok()) status = Check(driver_->RecordEvent(flight.end, stream), device, "record an event");
  if (!status.ok()) {
    driver_->SynchronizeStream(stream);
    ReturnEvent(device, flight.end);
    return status;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(At(device).flights[rows], flight);
  }
  ReturnEvent(device, flight.end);
  return Status::Ok();
}

Status Gpu::EndFlight(int32_t device, const void* rows, const std::vector<const void*>& kept, kernels::Stream stream) {
  Status status = Await(device, rows, kept, stream);
  if (status.ok()) return status;
  // The program fails, and XLA takes the memory of its other exchanges back: they end before.
  kernels::Stream exchanges = nullptr;
  DeviceScope scope(*this);
  if (scope.Choose(device).ok() && SideStream(device, Beside::kExchanges, &exchanges).ok()) {
    driver_->SynchronizeStream(exchanges);
  }
  return status;
}

Status Gpu::Await(int32_t device, const void* rows, const std::vector<const void*>& kept, kernels::Stream stream) {
  Flight flight;
  Status status;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& flights = At(device).flights;
    const auto found = flights.find(rows);
    if (found == flights.end()) {
      if (rows == nullptr) return Status::Ok();
      return Status::Internal("fastjax: no exchange of " + Name(device) +
                              " brings the rows that are waited for: XLA has moved them. Please report this; without "
                              "chunks, a layer starts no exchanges.");
    }
    flight = found->second;
    DeviceScope scope(*this);
    status = scope.Choose(device);
    // With the lock held, since a start without rows gives the event of the one before back, for others to record.
    if (status.ok()) status = Check(driver_->WaitEvent(stream, flight.end), device, "wait for an exchange");
    if (rows == nullptr) return status;
    flights.erase(found);
  }
  ReturnEvent(device, flight.end);
  const bool all = std::all_of(flight.reads.begin(), flight.reads.end(), [&](const void* array) {
    return array == nullptr || std::find(kept.begin(), kept.end(), array) != kept.end();
  });
  if (!status.ok() || all) return status;
  return Status::Internal("fastjax: XLA has not kept the operands of an exchange of " + Name(device) +
                          " until its end. Please report this; without chunks, a layer starts no exchanges.");
}

void Gpu::DropFlights(int32_t device, int64_t run_id) {
  std::vector<kernels::Event> ends;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& flights = At(device).flights;
    for (auto flight = flights.begin(); flight != flights.end();) {
      const bool own = flight->second.run_id == run_id;
      if (own) ends.push_back(flight->second.end);
      flight = own ? flights.erase(flight) : std::next(flight);
    }
  }
  for (kernels::Event end : ends) {
    driver_->SynchronizeEvent(end);
    ReturnEvent(device, end);
  }
}

}  // namespace fastjax::gpu
