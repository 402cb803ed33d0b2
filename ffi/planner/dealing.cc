#include "planner/dealing.h"

#include <algorithm>
#include <cstddef>

namespace fastjax::planner {
namespace {

// Where `part` of a line of `whole` rows is cut if the line is cut at `cut`, in proportion, to the nearest row: rounded
// down, the first devices would have less of all experts. Lengths are taken to 15 bits, so that products fit int32,
// which is all that JAX has by default.
int32_t Scale(int32_t part, int32_t cut, int32_t whole) {
  if (part == whole) return cut;
  int32_t shift = 0;
  while (whole >> shift >= 1 << 15) ++shift;
  whole >>= shift;
  cut >>= shift;
  return part / whole * cut + (part % whole * cut + whole / 2) / whole;
}

}  // namespace

std::string FindWrongSlot(const LevellingShape& shape, const int32_t* slots) {
  for (int32_t device = 0; device < shape.ranks(); ++device, slots += shape.copies) {
    const int32_t first = device / shape.devices * shape.server_experts();
    for (int32_t slot = 0; slot < shape.copies; ++slot) {
      const int32_t expert = slots[slot];
      if (expert == -1) continue;
      const bool in_server = expert >= first && expert - first < shape.server_experts();
      const bool again = std::find(slots, slots + slot, expert) != slots + slot;
      if (in_server && expert / shape.here != device && !again) continue;
      return "slot " + std::to_string(slot) + " of device " + std::to_string(device) + " has expert " +
             std::to_string(expert) +
             (again ? ", as another of its slots has."
                    : ". It must be one of another device of its server, whose experts are " + std::to_string(first) +
                          " to " + std::to_string(first + shape.server_experts() - 1) + ", or -1.");
    }
  }
  return "";
}

Dealer::Dealer(const LevellingShape& shape) : shape_(shape) {
  split_.reserve(static_cast<size_t>(shape.ranks()) * shape.copies);
  shares_.reserve(shape.devices);
  kept_.resize(shape.ranks());
}

void Dealer::Deal(const int32_t* counts, const int32_t* slots, const int32_t* rows, const Dealt& result) {
  WriteHome(counts, result);
  FindSplit(slots);
  for (size_t next = 0; next < split_.size();) {
    const auto expert = static_cast<int32_t>(split_[next] >> 32);
    const int32_t home = expert / shape_.here;
    shares_.clear();
    bool past_home = false;
    for (; next < split_.size() && static_cast<int32_t>(split_[next] >> 32) == expert; ++next) {
      const auto slot = static_cast<int32_t>(split_[next]);
      const int32_t device = slot / shape_.copies;
      if (device > home && !past_home) {
        AddShare(home, expert % shape_.here, rows);
        past_home = true;
      }
      AddShare(device, shape_.here + slot % shape_.copies, rows);
    }
    if (!past_home) AddShare(home, expert % shape_.here, rows);
    Cut(counts + expert, home);
    WriteShares(counts + expert, expert, result);
  }
}

// As if all rows were computed at home.
void Dealer::WriteHome(const int32_t* counts, const Dealt& result) const {
  int32_t* sizes = result.sizes;
  int32_t* starts = result.starts;
  for (int32_t sender = 0; sender < shape_.ranks(); ++sender) {
    int32_t start = 0;
    for (int32_t device = 0; device < shape_.ranks(); ++device, counts += shape_.here) {
      for (int32_t e = 0; e < shape_.here; ++e) {
        *sizes++ = counts[e];
        *starts++ = start;
        start += counts[e];
      }
      sizes = std::fill_n(sizes, shape_.copies, 0);
      starts = std::fill_n(starts, shape_.copies, 0);
    }
  }
}

void Dealer::FindSplit(const int32_t* slots) {
  split_.clear();
  const auto count = static_cast<uint64_t>(shape_.ranks()) * shape_.copies;
  for (uint64_t slot = 0; slot < count; ++slot) {
    if (slots[slot] >= 0) split_.push_back(static_cast<uint64_t>(slots[slot]) << 32 | slot);
  }
  std::sort(split_.begin(), split_.end());
}

void Dealer::AddShare(int32_t device, int32_t group, const int32_t* rows) {
  const int32_t before = shares_.empty() ? 0 : shares_.back().upto;
  const int32_t own = rows[static_cast<size_t>(device) * shape_.groups() + group];
  shares_.push_back({device, group, before + own, 0, 0, 0});
}

// Scales the shares to the rows that there are. `count`: of the expert, of the first sender.
void Dealer::Cut(const int32_t* count, int32_t home) {
  const auto of = [&](int32_t sender) { return count[static_cast<size_t>(sender) * shape_.experts()]; };
  int32_t part = 0;
  for (int32_t sender = 0; sender < shape_.ranks(); ++sender) part += of(sender);
  const int32_t whole = shares_.back().upto;
  std::fill(kept_.begin(), kept_.end(), 0);
  int32_t before = 0;
  int32_t end = 0;
  for (Share& share : shares_) {
    // Rows of which nothing was said stay at home.
    share.upto = whole > 0 ? Scale(part, share.upto, whole) : (share.device >= home ? part : 0);
    const int32_t rows = share.upto - before;
    before = share.upto;
    share.kept = kept_[share.device] = std::min(rows, of(share.device));
    share.begin = end;
    share.end = end += rows - share.kept;
  }
}

// Rows that are not kept lie on one line, in the order of senders, and are cut there in the order of devices.
void Dealer::WriteShares(const int32_t* count, int32_t expert, const Dealt& result) const {
  const size_t per_sender = static_cast<size_t>(shape_.ranks()) * shape_.groups();
  const size_t home = static_cast<size_t>(expert / shape_.here) * shape_.groups() + expert % shape_.here;
  int32_t begin = 0;
  for (int32_t sender = 0; sender < shape_.ranks(); ++sender, count += shape_.experts()) {
    int32_t* sizes = result.sizes + sender * per_sender;
    int32_t* starts = result.starts + sender * per_sender;
    const int32_t end = begin + *count - kept_[sender];
    int32_t start = starts[home];
    for (const Share& share : shares_) {
      const int32_t given = std::max(std::min(end, share.end) - std::max(begin, share.begin), 0);
      const int32_t rows = given + (share.device == sender ? share.kept : 0);
      const size_t place = static_cast<size_t>(share.device) * shape_.groups() + share.group;
      sizes[place] = rows;
      starts[place] = start;
      start += rows;
    }
    begin = end;
  }
}

}  // namespace fastjax::planner
