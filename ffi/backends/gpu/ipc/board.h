// Memory of the host that several of its processes, and all of their devices, see.
#ifndef FASTJAX_BACKENDS_GPU_IPC_BOARD_H_
#define FASTJAX_BACKENDS_GPU_IPC_BOARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/gpu/device/gpu.h"
#include "exchange/status.h"
#include "kernels/barrier.h"

namespace fastjax::gpu::ipc {

// The same in processes that can open each other's boards, and different on other hosts, and in containers that have
// shared memory of their own.
uint64_t HostId();

// What a board is found by. `process`, of the system, is for whoever looks through /dev/shm.
struct BoardName {
  uint64_t process = 0;
  uint64_t random[2] = {};
};

class Board {
 public:
  // All words are 0. It has a name until everybody has opened it.
  static Status Make(std::shared_ptr<Gpu> gpu, int32_t devices, std::unique_ptr<Board>* board);
  static Status Open(std::shared_ptr<Gpu> gpu, const BoardName& name, int32_t devices, std::unique_ptr<Board>* board);
  // Not while streams may come to its barriers.
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  const BoardName& name() const { return name_; }
  void Unlink();

  kernels::BoardLine* lines() const { return lines_; }
  // As a device sees it.
  Status LinesOn(int32_t device, kernels::BoardLine** lines) const;

 private:
  Board(std::shared_ptr<Gpu> gpu, const BoardName& name, int32_t devices);
  Status Map(int file);

  const std::shared_ptr<Gpu> gpu_;
  const BoardName name_;
  const size_t bytes_;
  kernels::BoardLine* lines_ = nullptr;
  bool linked_ = false;
  bool registered_ = false;
  int device_ = kernels::kNoDevice;  // of the thread that registered it
};

}  // namespace fastjax::gpu::ipc

#endif  // FASTJAX_BACKENDS_GPU_IPC_BOARD_H_
