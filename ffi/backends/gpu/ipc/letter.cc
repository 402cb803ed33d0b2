#include "backends/gpu/ipc/letter.h"

#include <algorithm>
#include <iterator>

namespace fastjax::gpu::ipc {
namespace {

constexpr size_t kHeaderWords = 6;
constexpr size_t kDeviceWords = 2 * kParts + 1;
constexpr size_t kHandleWords = sizeof(kernels::MemoryHandle) / sizeof(uint64_t);
constexpr size_t kLoanWords = 3 + kHandleWords;

int64_t Word(uint64_t value) { return static_cast<int64_t>(value); }

}  // namespace

std::vector<int64_t> Encode(const Letter& letter) {
  std::vector<int64_t> words = {letter.refuses ? 1 : 0, Word(letter.host),   Word(letter.circle),
                                Word(letter.exchanges), letter.news ? 1 : 0, Word(letter.loans.size())};
  for (const Letter::Device& device : letter.devices) {
    for (const Letter::Place& place : device.places) {
      words.push_back(place.loan);
      words.push_back(Word(place.offset));
    }
    words.push_back(device.staging_rows);
  }
  for (const Loan& loan : letter.loans) {
    words.insert(words.end(), {Word(loan.base), Word(loan.bytes), Word(loan.id)});
    std::transform(std::begin(loan.handle.words), std::end(loan.handle.words), std::back_inserter(words), Word);
  }
  return words;
}

bool Decode(const std::vector<int64_t>& words, size_t devices, Letter* letter) {
  const size_t begin = kHeaderWords + devices * kDeviceWords;
  if (words.size() < begin || words[5] < 0 || (words.size() - begin) % kLoanWords != 0 ||
      (words.size() - begin) / kLoanWords != static_cast<size_t>(words[5])) {
    return false;
  }
  letter->refuses = words[0] != 0;
  letter->host = static_cast<uint64_t>(words[1]);
  letter->circle = static_cast<uint64_t>(words[2]);
  letter->exchanges = static_cast<uint64_t>(words[3]);
  letter->news = words[4] != 0;
  const int64_t* next = words.data() + kHeaderWords;
  letter->devices.resize(devices);
  for (Letter::Device& device : letter->devices) {
    for (Letter::Place& place : device.places) {
      place = {next[0], static_cast<uint64_t>(next[1])};
      next += 2;
      if (place.loan < -1 || place.loan >= words[5]) return false;
    }
    device.staging_rows = *next++;
    if (device.staging_rows < 0) return false;
  }
  letter->loans.resize(static_cast<size_t>(words[5]));
  for (Loan& loan : letter->loans) {
    loan.base = static_cast<uint64_t>(next[0]);
    loan.bytes = static_cast<uint64_t>(next[1]);
    loan.id = static_cast<uint64_t>(next[2]);
    std::copy(next + 3, next + kLoanWords, std::begin(loan.handle.words));
    next += kLoanWords;
  }
  return true;
}

}  // namespace fastjax::gpu::ipc
