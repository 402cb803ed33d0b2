// Declares BarrierPage: a page of the host's memory that several of its processes map, and that all of their devices
// can read and write.
#ifndef FASTJAX_BACKENDS_GPU_IPC_BARRIER_PAGE_H_
#define FASTJAX_BACKENDS_GPU_IPC_BARRIER_PAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/gpu/device/gpu.h"
#include "exchange/status.h"
#include "kernels/barrier.h"

namespace fastjax::gpu::ipc {

// Returns a number that is equal in processes that can open each other's pages. It differs on other hosts, and in
// containers that have shared memory of their own.
uint64_t HostId();

// What a page is found by. `process`, of the system, is for whoever looks through /dev/shm.
struct PageName {
  uint64_t process = 0;
  uint64_t random[2] = {};
};

class BarrierPage {
 public:
  // All words are 0. It has a name until everybody has opened it.
  static Status Make(std::shared_ptr<Gpu> gpu, int32_t devices, std::unique_ptr<BarrierPage>* page);
  static Status Open(std::shared_ptr<Gpu> gpu, const PageName& name, int32_t devices,
                     std::unique_ptr<BarrierPage>* page);
  // Must not be destroyed while streams may come to its barriers.
  ~BarrierPage();
  BarrierPage(const BarrierPage&) = delete;
  BarrierPage& operator=(const BarrierPage&) = delete;

  const PageName& name() const { return name_; }
  void Unlink();

  kernels::BarrierLine* lines() const { return lines_; }
  // Gives the address at which a device sees the lines.
  Status LinesOn(int32_t device, kernels::BarrierLine** lines) const;

 private:
  BarrierPage(std::shared_ptr<Gpu> gpu, const PageName& name, int32_t devices);
  Status Map(int file);

  const std::shared_ptr<Gpu> gpu_;
  const PageName name_;
  const size_t bytes_;
  kernels::BarrierLine* lines_ = nullptr;
  bool linked_ = false;
  bool registered_ = false;
  int device_ = kernels::kNoDevice;  // of the thread that registered it
};

}  // namespace fastjax::gpu::ipc

#endif  // FASTJAX_BACKENDS_GPU_IPC_BARRIER_PAGE_H_
