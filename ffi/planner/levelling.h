// Chooses which devices of a server compute rows of its popular experts.
#ifndef FASTJAX_PLANNER_LEVELLING_H_
#define FASTJAX_PLANNER_LEVELLING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjax::planner {

// Experts are numbered by the devices that hold them, their homes, and devices server by server. A device has groups of
// rows of one expert each: first those of its own experts, then those of its slots.
struct LevellingShape {
  int32_t servers = 1;
  int32_t devices = 1;  // of each server
  int32_t here = 1;     // experts of each device
  int32_t copies = 1;   // slots of each device: the most experts of others that it computes for

  int32_t ranks() const { return servers * devices; }
  int32_t experts() const { return ranks() * here; }
  int32_t groups() const { return here + copies; }  // of each device
  int32_t server_experts() const { return devices * here; }
};

struct Levelled {
  int32_t* slots;  // by device: the expert of each slot; unused ones are last, and -1
  int32_t* rows;   // by device and group
};

// Integers with fixed ties: the same on every host.
class Leveller {
 public:
  // `cost_rows`: the rows that a copy takes as long as, on the slowest device.
  Leveller(const LevellingShape& shape, int64_t cost_rows);

  // `rows`: by expert, none negative, together at most INT32_MAX.
  void Level(const int32_t* rows, const Levelled& result);

 private:
  // Up to `limit` slots of each device are used, so that no device has more than `cap` rows, as far as that can be.
  struct Deal {
    int32_t limit = 0;
    int32_t cap = 0;
  };
  struct Choice {
    Deal deal;
    int64_t cost;  // rows of the slowest device and of the copies together
  };

  void TakeRows(const int32_t* rows);
  void Choose();
  void Search(int32_t limit, Choice* best);
  // Returns the rows of the slowest device.
  int32_t DealOut(const Deal& deal);
  int32_t FindTaker(int32_t limit) const;
  int32_t FindGiver(int32_t room, int32_t cap) const;
  void Move(int32_t giver, int32_t taker, int32_t rows);
  int32_t Largest(int32_t device) const;
  void Write(int32_t server, const Levelled& result) const;

  LevellingShape shape_;
  int64_t cost_rows_;

  // Of one server; experts by their number in it.
  std::vector<int32_t> rows_;     // by expert
  std::vector<int32_t> loads_;    // by device
  std::vector<int32_t> largest_;  // by device: its most popular expert
  int32_t mean_ = 0;              // rounded up

  // The same while rows are dealt.
  std::vector<int32_t> rows_left_;
  std::vector<int32_t> load_;
  std::vector<int32_t> largest_left_;
  std::vector<int32_t> used_;    // slots of each device
  std::vector<int32_t> expert_;  // by device and slot
  std::vector<int32_t> taken_;   // rows of it
  std::vector<int32_t> givers_;  // devices above the cap, in order
  std::vector<int32_t> takers_;  // those below it that have slots left
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_LEVELLING_H_
