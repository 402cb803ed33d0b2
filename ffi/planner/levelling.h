// Deals rows of popular experts to devices of the same server that have less to compute.
#ifndef FASTJAX_PLANNER_LEVELLING_H_
#define FASTJAX_PLANNER_LEVELLING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastjax::planner {

// Experts are numbered by the devices that hold them, their homes, and devices server by server.
struct LevellingShape {
  int32_t servers = 1;
  int32_t devices = 1;    // of each server
  int32_t here = 1;       // experts of each device
  int32_t copies = 1;     // the most experts of other devices that a device computes for
  int64_t cost_rows = 0;  // the rows that a copy takes as long as, on the slowest device

  int32_t ranks() const { return servers * devices; }
  int32_t experts() const { return ranks() * here; }
  int32_t groups() const { return here + copies; }  // of rows of one expert, on each device
};

// By sender, device and group: first the device's own experts, then its slots.
struct Levelled {
  int32_t* slots;   // by device: the expert of each slot; unused ones are last, and -1
  int32_t* sizes;   // rows
  int32_t* starts;  // where they begin among the sender's rows, sorted by expert; 0 in unused slots
};

// Integers with fixed ties: the same on every host.
//
// Of the rows of an expert, a device computes first what it sends itself, which need not travel. The others are dealt
// to the devices in the order of senders. Each sender's rows of an expert are cut in the order of devices.
class Leveller {
 public:
  explicit Leveller(const LevellingShape& shape);

  const LevellingShape& shape() const { return shape_; }
  // `counts`: rows of each sender for each expert, none negative, together at most INT32_MAX.
  void Level(const int32_t* counts, const Levelled& result);

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
  // Rows of an expert that a device computes.
  struct Share {
    int32_t device;
    int32_t group;
    int32_t kept;   // of its own rows
    int32_t begin;  // of others' rows
    int32_t end;
  };

  void CountRows(const int32_t* counts, int32_t server);
  void Choose();
  void Search(int32_t limit, Choice* best);
  // Returns the rows of the slowest device.
  int32_t DealOut(const Deal& deal);
  int32_t FindTaker(int32_t limit) const;
  int32_t FindGiver(int32_t room, int32_t cap) const;
  void Move(int32_t giver, int32_t taker, int32_t rows);
  int32_t Largest(int32_t device) const;

  void WriteHome(const int32_t* counts, const Levelled& result) const;
  void WriteSplit(const int32_t* counts, int32_t server, const Levelled& result);
  void WriteShares(const int32_t* counts, int32_t server, int32_t expert, const Levelled& result) const;

  LevellingShape shape_;

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

  std::vector<size_t> split_;  // slots that are used, by expert and device
  std::vector<Share> shares_;  // of one expert, by device
  std::vector<int32_t> kept_;  // by device
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_LEVELLING_H_
