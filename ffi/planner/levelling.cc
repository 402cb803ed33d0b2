#include "planner/levelling.h"

#include <algorithm>
#include <numeric>

namespace fastjax::planner {
namespace {

// Halvings of the range in which the best cap lies: to 1/64 of what the first deal leaves above the mean.
constexpr int32_t kHalvings = 6;

}  // namespace

Leveller::Leveller(const LevellingShape& shape, int64_t cost_rows) : shape_(shape), cost_rows_(cost_rows) {
  const auto devices = static_cast<size_t>(shape.devices);
  for (auto* by_expert : {&rows_, &rows_left_}) by_expert->resize(devices * shape.here);
  for (auto* by_device : {&loads_, &largest_, &load_, &largest_left_, &used_}) by_device->resize(devices);
  for (auto* by_slot : {&expert_, &taken_}) by_slot->resize(devices * shape.copies);
  for (auto* list : {&givers_, &takers_}) list->reserve(devices);
}

void Leveller::Level(const int32_t* rows, const Levelled& result) {
  for (int32_t server = 0; server < shape_.servers; ++server) {
    TakeRows(rows + static_cast<ptrdiff_t>(server) * shape_.server_experts());
    Choose();
    Write(server, result);
  }
}

void Leveller::TakeRows(const int32_t* rows) {
  std::copy_n(rows, rows_.size(), rows_.begin());
  rows_left_ = rows_;
  for (int32_t device = 0; device < shape_.devices; ++device) {
    const auto first = rows_.begin() + static_cast<ptrdiff_t>(device) * shape_.here;
    loads_[device] = std::accumulate(first, first + shape_.here, int32_t{0});
    largest_[device] = Largest(device);
  }
  const int64_t total = std::accumulate(loads_.begin(), loads_.end(), int64_t{0});
  mean_ = static_cast<int32_t>((total + shape_.devices - 1) / shape_.devices);
}

// The first of those that are as popular.
int32_t Leveller::Largest(int32_t device) const {
  const auto first = rows_left_.begin() + static_cast<ptrdiff_t>(device) * shape_.here;
  return static_cast<int32_t>(std::max_element(first, first + shape_.here) - rows_left_.begin());
}

// Deals rows with the number of slots that costs least, the smallest of several.
void Leveller::Choose() {
  Choice best = {{0, mean_}, *std::max_element(loads_.begin(), loads_.end())};
  int32_t limit = 1;
  for (; limit <= shape_.copies && mean_ + limit * cost_rows_ < best.cost; ++limit) {
    if (DealOut({limit, mean_}) > mean_) continue;
    best = {{limit, mean_}, mean_ + limit * cost_rows_};  // which more slots cannot better
    break;
  }
  for (int32_t fewer = 1; fewer < limit; ++fewer) Search(fewer, &best);
  DealOut(best.deal);
}

// Finds a cap above the mean at which slots suffice. Stops when the result cannot be the best any more.
void Leveller::Search(int32_t limit, Choice* best) {
  const int64_t copies = limit * cost_rows_;
  const auto betters = [&](int64_t cost) {
    return cost < best->cost || (cost == best->cost && limit < best->deal.limit);
  };
  int32_t low = mean_;  // at which they do not
  if (!betters(low + 1 + copies)) return;
  Deal deal = {limit, mean_};
  int32_t high = DealOut(deal);
  for (int32_t i = 0; i < kHalvings && low + 1 < high && betters(low + 1 + copies); ++i) {
    const int32_t middle = low + (high - low) / 2;
    const int32_t slowest = DealOut({limit, middle});
    if (slowest < high) deal.cap = middle;
    high = std::min(high, slowest);
    if (slowest > middle) low = middle;
  }
  if (betters(high + copies)) *best = {deal, high + copies};
}

int32_t Leveller::DealOut(const Deal& deal) {
  rows_left_ = rows_;
  load_ = loads_;
  largest_left_ = largest_;
  std::fill(used_.begin(), used_.end(), 0);
  givers_.clear();
  takers_.clear();
  for (int32_t device = 0; device < shape_.devices; ++device) {
    if (load_[device] > deal.cap) givers_.push_back(device);
    if (load_[device] < deal.cap && deal.limit > 0) takers_.push_back(device);
  }
  while (!givers_.empty() && !takers_.empty()) {
    const int32_t taker = FindTaker(deal.limit);
    const int32_t room = deal.cap - load_[taker];
    const int32_t giver = FindGiver(room, deal.cap);
    Move(giver, taker, std::min(room, rows_left_[largest_left_[giver]]));
    if (load_[taker] == deal.cap || used_[taker] == deal.limit) {
      takers_.erase(std::find(takers_.begin(), takers_.end(), taker));
    }
    if (load_[giver] > deal.cap) continue;
    givers_.erase(std::find(givers_.begin(), givers_.end(), giver));
    if (load_[giver] < deal.cap) takers_.insert(std::lower_bound(takers_.begin(), takers_.end(), giver), giver);
  }
  return *std::max_element(load_.begin(), load_.end());
}

// That which uses the fewest slots; of several, that which has the most room.
int32_t Leveller::FindTaker(int32_t limit) const {
  int32_t found = -1;
  int32_t used = limit;
  int32_t load = 0;
  for (const int32_t device : takers_) {
    if (used_[device] > used || (used_[device] == used && (found < 0 || load_[device] >= load))) continue;
    found = device;
    used = used_[device];
    load = load_[device];
  }
  return found;
}

// Of those that have an expert whose rows fill the room, that which has the most rows above the cap; if there is none,
// that which has the most popular expert.
int32_t Leveller::FindGiver(int32_t room, int32_t cap) const {
  int32_t fitting = -1;
  int32_t excess = 0;
  int32_t popular = -1;
  int32_t rows = 0;
  for (const int32_t device : givers_) {
    const int32_t most = rows_left_[largest_left_[device]];
    if (most >= room && load_[device] - cap > excess) {
      fitting = device;
      excess = load_[device] - cap;
    }
    if (most > rows) {
      popular = device;
      rows = most;
    }
  }
  return fitting >= 0 ? fitting : popular;
}

void Leveller::Move(int32_t giver, int32_t taker, int32_t rows) {
  const int32_t expert = largest_left_[giver];
  const size_t slot = static_cast<size_t>(taker) * shape_.copies + used_[taker]++;
  expert_[slot] = expert;
  taken_[slot] = rows;
  load_[taker] += rows;
  load_[giver] -= rows;
  rows_left_[expert] -= rows;
  largest_left_[giver] = Largest(giver);
}

void Leveller::Write(int32_t server, const Levelled& result) const {
  const auto device = static_cast<size_t>(server) * shape_.devices;
  int32_t* slots = result.slots + device * shape_.copies;
  int32_t* rows = result.rows + device * shape_.groups();
  for (int32_t d = 0; d < shape_.devices; ++d) {
    const auto home = rows_left_.begin() + static_cast<ptrdiff_t>(d) * shape_.here;
    const auto slot = static_cast<ptrdiff_t>(d) * shape_.copies;
    rows = std::copy_n(home, shape_.here, rows);
    rows = std::copy_n(taken_.begin() + slot, used_[d], rows);
    rows = std::fill_n(rows, shape_.copies - used_[d], 0);
    slots = std::transform(expert_.begin() + slot, expert_.begin() + slot + used_[d], slots,
                           [&](int32_t expert) { return server * shape_.server_experts() + expert; });
    slots = std::fill_n(slots, shape_.copies - used_[d], -1);
  }
}

}  // namespace fastjax::planner
