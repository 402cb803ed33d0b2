// When messages may be sent: a program for the simulator.
#ifndef FASTJAX_SIMULATOR_SCHEDULE_H_
#define FASTJAX_SIMULATOR_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "planner/topology.h"
#include "simulator/messages.h"
#include "simulator/program.h"

namespace fastjax::simulator {

// How the scale-out stages of a plan follow each other; plans of one stage have nothing to keep in step.
enum class Synchronization : int8_t {
  kCredit = 0,   // when the sender has sent for the stage before, and the receiver has received for it
  kBarrier = 1,  // when the stage before is over everywhere
  kFree = 2,     // when the sender has sent for the stage before
  // When the sender has sent for the stage that is kStagesInFlight before, and the receiver has received for it, so
  // that start-ups overlap. What goes from one device to another flows one after the other.
  kWindow = 3,
};

// Works as the network backend does, except for stages that end before others that began earlier: in the backend, these
// make room as well.
inline constexpr int32_t kStagesInFlight = 4;

struct Fabric {
  Synchronization synchronization = Synchronization::kCredit;
  bool balance_first = false;        // nothing crosses before all balancing is done
  double oversubscription = 1;       // what all NICs could send over what the core carries
  std::vector<double> efficiencies;  // of a NIC, by the number of its senders, from one on
  bool whole_senders = false;        // those who send to several at once are one at each, not a part
};

// Tasks by message, and gates after them. Links are those into the server's fabric of all devices, those out of it,
// those into the network between servers, those out of it, and its core.
Program Schedule(const Messages& messages, const planner::Topology& topology, int64_t row_bytes, const Fabric& fabric);

}  // namespace fastjax::simulator

#endif  // FASTJAX_SIMULATOR_SCHEDULE_H_
