// Declares copies of the operands of an exchange, so that XLA may reuse the memory of the operands while rows travel.
//
// XLA's CPU backend gives the memory of operands to later operations of its order. Without copies these would wait for
// the end of the exchange, and nothing would run beside it.
#ifndef FASTJAX_HANDLERS_STAGING_H_
#define FASTJAX_HANDLERS_STAGING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <vector>

#include "handlers/operands.h"
#include "runtime/staging_pool.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {

class StagedCopies;

// The number by which the call that exchanges finds the operands that the call that stages has copied.
using StagedId = uint64_t;

// A buffer of XLA's, of any type.
struct StagedOperand {
  template <typename Buffer>
  StagedOperand(const Buffer& buffer)  // NOLINT(google-explicit-constructor): for lists of them
      : type(static_cast<XLA_FFI_DataType>(buffer.element_type())),
        data(buffer.untyped_data()),
        bytes(buffer.size_bytes()),
        dimensions(buffer.dimensions()) {}

  XLA_FFI_DataType type;
  const void* data;
  size_t bytes;
  ffi::Span<const int64_t> dimensions;
};

// The copies of the operands of one launch. They lie in one piece of memory, which later launches reuse.
class StagedOperands {
 public:
  static constexpr size_t kMost = 8;  // source, four of metadata, table, indices, factors

  // Copies the operands. False if there is no memory for the copies.
  bool Copy(std::initializer_list<StagedOperand> operands);

  // Returns the buffers that the exchange would get without staging. `result`, `base` and `partition` are those of the
  // call that exchanges.
  ExchangeBuffers Buffers(const ffi::AnyBuffer& result, const ffi::AnyBuffer& base,
                          const ffi::AnyBuffer& partition) const;

  // The call that stages writes an id of these operands over the first bytes of the buffer that the call that exchanges
  // gets, and keeps what was there.
  void WriteId(void* memory);
  // Returns the operands whose id is in the first bytes, and puts back what was there; null if there is no id.
  static StagedOperands* TakeById(void* memory);
  // Says that there are no operands: TakeById returns null.
  static void WriteNoId(void* memory);

 private:
  friend class StagedCopies;

  std::array<XLA_FFI_Buffer, kMost> buffers_{};
  size_t count_ = 0;
  std::vector<int64_t> dimensions_;
  fastjax::StagingPool::Buffer memory_;
  std::array<std::byte, sizeof(StagedId)> replaced_{};  // by the id
  StagedId id_ = 0;                                     // 0: no call is to take these any more
  StagedCopies* owner_ = nullptr;
};

// Owns the copies of one call site that stages, also those of launches that ended before they were exchanged. It is
// part of the state of the executable that exchanges them.
class StagedCopies {
 public:
  StagedCopies() = default;
  ~StagedCopies();
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  StagedOperands* Take();
  static void Return(StagedOperands* staged);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<StagedOperands>> all_;
  std::vector<StagedOperands*> free_;
};

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_STAGING_H_
