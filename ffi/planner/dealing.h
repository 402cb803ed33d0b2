// Deals each sender's rows of experts to the devices that compute them.
#ifndef FASTJAX_PLANNER_DEALING_H_
#define FASTJAX_PLANNER_DEALING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/levelling.h"

namespace fastjax::planner {

// What is wrong with slots; empty if nothing. Those that are used must have experts of other devices of the server,
// each device another one in each of its slots.
std::string FindWrongSlot(const LevellingShape& shape, const int32_t* slots);

// By sender, device and group.
struct Dealt {
  int32_t* sizes;   // rows
  int32_t* starts;  // where they begin among the sender's rows, sorted by expert; 0 in unused slots
};

// Integers with fixed ties: the same on every host.
//
// Devices share the rows of an expert as `rows` say, by device and group. Of its share, a device computes first what it
// sends itself, which need not travel. The others are dealt to the devices in the order of senders. Each sender's rows
// of an expert are cut in the order of devices.
class Dealer {
 public:
  explicit Dealer(const LevellingShape& shape);

  // `counts`: rows of each sender for each expert. Neither they nor `rows` may be negative, or together more than
  // INT32_MAX; what `rows` say of unused slots does not matter.
  void Deal(const int32_t* counts, const int32_t* slots, const int32_t* rows, const Dealt& result);

 private:
  // Rows of an expert that a device computes.
  struct Share {
    int32_t device;
    int32_t group;
    int32_t upto;   // rows of the expert, of it and of the devices before it
    int32_t kept;   // of its own rows
    int32_t begin;  // of others' rows
    int32_t end;
  };

  void WriteHome(const int32_t* counts, const Dealt& result) const;
  void FindSplit(const int32_t* slots);
  void AddShare(int32_t device, int32_t group, const int32_t* rows);
  void Cut(const int32_t* count, int32_t home);
  void WriteShares(const int32_t* count, int32_t expert, const Dealt& result) const;

  LevellingShape shape_;
  std::vector<uint64_t> split_;  // expert and slot of the slots that are used, in order
  std::vector<Share> shares_;    // of one expert, by device
  std::vector<int32_t> kept_;    // by device
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_DEALING_H_
