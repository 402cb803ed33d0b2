// Declares Fetch, which brings what a call reads of its device before it begins (sizes, offsets, tables) to pinned
// memory. The calling thread waits once for all of it.
#ifndef FASTJAX_BACKENDS_GPU_DEVICE_FETCH_H_
#define FASTJAX_BACKENDS_GPU_DEVICE_FETCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/gpu/device/caller.h"
#include "backends/gpu/device/gpu.h"
#include "exchange/status.h"

namespace fastjax::gpu {

// In bytes.
struct TableShape {
  size_t head = 0;
  size_t each = 0;
  size_t count_at = 0;
};

class Fetch {
 public:
  explicit Fetch(Gpu* gpu) : gpu_(gpu) {}
  ~Fetch();
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  // Has `*where` point to a copy of `bytes` bytes, once Run has returned and for as long as this lives.
  template <typename T>
  void Add(const T** where, size_t bytes) {
    wanted_.push_back({reinterpret_cast<const void**>(where), bytes, {}});
  }
  // Adds a table, as Add does, but copies only the part that is in use: `head` bytes, and as many times `each` bytes as
  // the int32 at `count_at` says. The rest of the copy is undefined.
  template <typename T>
  void AddTable(const T** where, size_t bytes, const TableShape& shape) {
    wanted_.push_back({reinterpret_cast<const void**>(where), bytes, shape});
  }
  // Has `*where` point to `bytes` bytes of the same memory, which the host writes.
  void AddRoom(std::byte** where, size_t bytes) {
    room_ = where;
    room_bytes_ = bytes;
  }

  // Waits for what the caller's stream has been given so far.
  Status Run(const Caller& caller);
  // The memory is used by the caller's stream, up to what is on it now.
  void UsedByStream() { used_ = true; }

 private:
  struct Wanted {
    const void** where;
    size_t bytes;
    TableShape shape;
  };

  Status Launch(const Caller& caller);

  Gpu* const gpu_;
  std::vector<Wanted> wanted_;
  std::byte** room_ = nullptr;
  size_t room_bytes_ = 0;
  Kept pinned_;
  Caller caller_;
  bool used_ = false;
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_DEVICE_FETCH_H_
