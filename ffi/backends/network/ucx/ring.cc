#include "backends/network/ucx/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>

namespace fastjax::network::ucx {
namespace {

constexpr size_t kRingBytes = 4 * kMostInRing;
constexpr size_t kCacheLine = 64;
// Its length stays, so that nobody can make reading it fault. There may be other seals: some kernels add one.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kSealsAsked = kSeals | F_SEAL_WRITE;

constexpr uint64_t kNever = uint64_t{1} << 63;

// What precedes a message's data.
struct Front {
  Header header;
  uint64_t nic_worker;  // the receiver's
};

constexpr size_t LengthInRing(size_t bytes) {
  return (sizeof(Front) + bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}
static_assert(LengthInRing(kMostInRing) <= kRingBytes / 2, "the longest message never waits for an empty ring");

}  // namespace

// Whatever the other end writes here is looked at once, and believed only where nothing depends on it.
struct RingMemory {
  // The reader's, but that the writer may clear `armed`.
  alignas(kCacheLine) std::atomic<uint64_t> read;
  std::atomic<uint64_t> proof;
  std::atomic<uint64_t> bell_inode;
  std::atomic<int32_t> doorbell;
  std::atomic<uint32_t> armed;
  // The writer's.
  alignas(kCacheLine) std::atomic<uint64_t> written;
  alignas(kCacheLine) std::byte bytes[kRingBytes];

  static_assert(std::atomic<uint64_t>::is_always_lock_free, "locks are a process's own");

  static RingMemory* Map(int descriptor) {
    void* const at = mmap(nullptr, sizeof(RingMemory), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return at == MAP_FAILED ? nullptr : static_cast<RingMemory*>(at);
  }
  void Put(uint64_t position, const void* data, size_t length) {
    const size_t at = position % kRingBytes;
    const size_t first = std::min(length, kRingBytes - at);
    if (first > 0) std::memcpy(bytes + at, data, first);
    if (length > first) std::memcpy(bytes, static_cast<const std::byte*>(data) + first, length - first);
  }
  void Get(uint64_t position, void* data, size_t length) const {
    const size_t at = position % kRingBytes;
    const size_t first = std::min(length, kRingBytes - at);
    if (first > 0) std::memcpy(data, bytes + at, first);
    if (length > first) std::memcpy(static_cast<std::byte*>(data) + first, bytes, length - first);
  }
};

void Unmap::operator()(RingMemory* memory) const { munmap(memory, sizeof(RingMemory)); }

bool RingReader::Open(uint64_t proof, int doorbell) {
  Close();
  struct stat found{};
  if (fstat(doorbell, &found) != 0) return false;
  descriptor_ = memfd_create("fastjax", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor_ >= 0 && fchmod(descriptor_, S_IRUSR | S_IWUSR) == 0 &&
      posix_fallocate(descriptor_, 0, sizeof(RingMemory)) == 0 && fcntl(descriptor_, F_ADD_SEALS, kSeals) == 0) {
    memory_.reset(RingMemory::Map(descriptor_));
  }
  if (memory_ == nullptr) {
    Close();
    return false;
  }
  // New memory is zero, and so is all else in it.
  memory_->doorbell.store(doorbell);
  memory_->bell_inode.store(found.st_ino);
  memory_->proof.store(proof);
  return true;
}

void RingReader::Close() {
  // The sender finds no room any more.
  if (memory_ != nullptr) memory_->read.store(at_ + kNever);
  memory_ = nullptr;
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
  at_ = 0;
}

bool RingReader::Next(Header* header, uint32_t* nic_worker) {
  if (memory_ == nullptr) return false;
  const uint64_t there = memory_->written.load(std::memory_order_acquire) - at_;
  if (there == 0) return false;
  Front front{};
  if (there >= sizeof(front) && there <= kRingBytes) memory_->Get(at_, &front, sizeof(front));
  if (front.header.magic != kHeaderMagic || front.header.bytes > kMostInRing ||
      LengthInRing(front.header.bytes) > there) {
    Close();
    return false;
  }
  *header = front.header;
  *nic_worker = static_cast<uint32_t>(front.nic_worker);
  length_ = front.header.bytes;
  return true;
}

void RingReader::Take(std::byte* data) {
  if (data != nullptr) memory_->Get(at_ + sizeof(Front), data, length_);
  at_ += LengthInRing(length_);
  memory_->read.store(at_, std::memory_order_release);
}

// Either the sender, who writes first and looks at `armed` then, sees that it must ring, or we see what it wrote: all
// four in one order.
bool RingReader::Arm() {
  if (memory_ == nullptr) return true;
  memory_->armed.store(1);
  return memory_->written.load() == at_;
}

void RingReader::Disarm() {
  if (memory_ != nullptr) memory_->armed.store(0, std::memory_order_relaxed);
}

bool RingWriter::Open(int64_t pid, int descriptor, uint64_t proof) {
  Close();
  const std::string descriptors = "/proc/" + std::to_string(pid) + "/fd/";
  std::string name = descriptors + std::to_string(descriptor);
  // Looked at before they are opened: meanwhile the number may be another's.
  struct stat found{};
  if (stat(name.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return false;
  const int ring = open(name.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (ring < 0) return false;
  const bool whole = fstat(ring, &found) == 0 && found.st_size == static_cast<off_t>(sizeof(RingMemory)) &&
                     (fcntl(ring, F_GET_SEALS) & kSealsAsked) == kSeals;
  if (whole) memory_.reset(RingMemory::Map(ring));
  close(ring);
  if (memory_ == nullptr) return false;
  name = descriptors + std::to_string(memory_->doorbell.load());
  const bool meant = memory_->proof.load() == proof && stat(name.c_str(), &found) == 0 && S_ISFIFO(found.st_mode) &&
                     found.st_ino == memory_->bell_inode.load();
  // For reading, too: else the end of the reader would be a signal.
  if (meant) doorbell_ = open(name.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (doorbell_ < 0) {
    Close();
    return false;
  }
  at_ = memory_->written.load();
  return true;
}

void RingWriter::Close() {
  memory_ = nullptr;
  due_ = false;
  if (doorbell_ >= 0) close(doorbell_);
  doorbell_ = -1;
}

bool RingWriter::Send(const Header& header, uint32_t nic_worker, const std::byte* data) {
  if (memory_ == nullptr || header.bytes > kMostInRing) return false;
  const size_t length = LengthInRing(header.bytes);
  const uint64_t full = at_ - memory_->read.load(std::memory_order_acquire);
  if (full > kRingBytes || length > kRingBytes - full) return false;
  const Front front{header, nic_worker};
  memory_->Put(at_, &front, sizeof(front));
  memory_->Put(at_ + sizeof(front), data, header.bytes);
  at_ += length;
  memory_->written.store(at_);
  due_ = true;
  return true;
}

void RingWriter::Ring() {
  if (!due_) return;
  due_ = false;
  if (memory_->armed.load() == 0 || memory_->armed.exchange(0) == 0) return;
  const char byte = 1;
  [[maybe_unused]] const ssize_t rung = write(doorbell_, &byte, 1);  // if it is full, it rings
}

}  // namespace fastjax::network::ucx
