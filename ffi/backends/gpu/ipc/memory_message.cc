#include "backends/gpu/ipc/memory_message.h"

#include <algorithm>
#include <iterator>

namespace fastjax::gpu::ipc {
namespace {

constexpr size_t kHeaderWords = 6;
constexpr size_t kDeviceWords = 2 * kParts + 1;
constexpr size_t kHandleWords = sizeof(kernels::MemoryHandle) / sizeof(uint64_t);
constexpr size_t kAllocationWords = 3 + kHandleWords;

int64_t Word(uint64_t value) { return static_cast<int64_t>(value); }

}  // namespace

std::vector<int64_t> Encode(const MemoryMessage& message) {
  std::vector<int64_t> words = {message.refuses ? 1 : 0, Word(message.host),   Word(message.memory_group),
                                Word(message.exchanges), message.news ? 1 : 0, Word(message.shared_allocations.size())};
  for (const MemoryMessage::Device& device : message.devices) {
    for (const MemoryMessage::Place& place : device.places) {
      words.push_back(place.shared);
      words.push_back(Word(place.offset));
    }
    words.push_back(device.staging_rows);
  }
  for (const SharedAllocation& shared : message.shared_allocations) {
    words.insert(words.end(), {Word(shared.base), Word(shared.bytes), Word(shared.id)});
    std::transform(std::begin(shared.handle.words), std::end(shared.handle.words), std::back_inserter(words), Word);
  }
  return words;
}

bool Decode(const std::vector<int64_t>& words, size_t devices, MemoryMessage* message) {
  const size_t begin = kHeaderWords + devices * kDeviceWords;
  if (words.size() < begin || words[5] < 0 || (words.size() - begin) % kAllocationWords != 0 ||
      (words.size() - begin) / kAllocationWords != static_cast<size_t>(words[5])) {
    return false;
  }
  message->refuses = words[0] != 0;
  message->host = static_cast<uint64_t>(words[1]);
  message->memory_group = static_cast<uint64_t>(words[2]);
  message->exchanges = static_cast<uint64_t>(words[3]);
  message->news = words[4] != 0;
  const int64_t* next = words.data() + kHeaderWords;
  message->devices.resize(devices);
  for (MemoryMessage::Device& device : message->devices) {
    for (MemoryMessage::Place& place : device.places) {
      place = {next[0], static_cast<uint64_t>(next[1])};
      next += 2;
      if (place.shared < -1 || place.shared >= words[5]) return false;
    }
    device.staging_rows = *next++;
    if (device.staging_rows < 0) return false;
  }
  message->shared_allocations.resize(static_cast<size_t>(words[5]));
  for (SharedAllocation& shared : message->shared_allocations) {
    shared.base = static_cast<uint64_t>(next[0]);
    shared.bytes = static_cast<uint64_t>(next[1]);
    shared.id = static_cast<uint64_t>(next[2]);
    std::copy(next + 3, next + kAllocationWords, std::begin(shared.handle.words));
    next += kAllocationWords;
  }
  return true;
}

}  // namespace fastjax::gpu::ipc
