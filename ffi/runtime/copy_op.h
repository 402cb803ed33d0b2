// Declares CopyOp: one copy between two pieces of memory that this process can address.
#ifndef FASTJAX_RUNTIME_COPY_OP_H_
#define FASTJAX_RUNTIME_COPY_OP_H_

#include <cstddef>
#include <cstdint>

#include "kernels/copy.h"

namespace fastjax {

struct CopyOp {
  std::byte* dst;
  const std::byte* src;
  int64_t bytes;
  kernels::Destination destination;
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_COPY_OP_H_
