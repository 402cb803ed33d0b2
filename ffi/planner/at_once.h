// What it costs that senders are not kept in step.
#ifndef FASTJAX_PLANNER_AT_ONCE_H_
#define FASTJAX_PLANNER_AT_ONCE_H_

#include <algorithm>
#include <cstdint>

#include "planner/rate.h"
#include "planner/topology.h"

namespace fastjax::planner {

// Time of an exchange that sends everything at once, whose busiest NIC works for `busiest`, and whose blocks would take
// `in_step` if senders went from receiver to receiver together. The more uneven the blocks, the more senders meet at a
// receiver: the share of time by which in_step exceeds the busiest NIC's is what incast may spoil, and incast_loss says
// how much of that it does.
inline Picoseconds AtOnceTime(const Topology& topology, Picoseconds busiest, Picoseconds in_step) {
  if (in_step <= busiest) return busiest;
  constexpr Wide kMillion = 1'000'000;
  const Wide drift_ppm = (in_step - busiest) / (in_step / kMillion + 1);
  return busiest + busiest / kMillion * drift_ppm / kMillion * topology.incast_loss_ppm;
}

// Time of a NIC that works for `busy`, on as many messages, which its device posts one by one: it goes on with one
// while the next is posted, so that the slower of both counts, and one message's worth of the other. Lists are in such
// orders that senders which post together meet at no receiver.
inline Picoseconds PostedTime(Picoseconds busy, Picoseconds overhead, int64_t messages) {
  if (messages == 0) return busy;
  return std::max(busy + overhead, overhead * messages + busy / messages);
}

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_AT_ONCE_H_
