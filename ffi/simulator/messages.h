// What devices send each other: the transfers of a plan, put together.
#ifndef FASTJAX_SIMULATOR_MESSAGES_H_
#define FASTJAX_SIMULATOR_MESSAGES_H_

#include <cstdint>
#include <vector>

#include "planner/transfer.h"
#include "simulator/program.h"

namespace fastjax::simulator {

// All that one device sends to another in one phase of one stage, or one piece of it.
struct Message {
  planner::Phase phase;
  int32_t stage;
  int32_t piece;
  int32_t src;
  int32_t dst;
  int32_t order;  // among all messages: that of their first transfers
  int64_t rows;
};

struct Messages {
  std::vector<Message> all;           // by stage, phase, src, dst and piece
  std::vector<int32_t> of_transfers;  // the first message of each transfer, or -1 where nothing moves
  std::vector<int32_t> last_of_transfers;
  std::vector<Edge> edges;  // rows must have come before they are sent on
  int32_t stages = 0;
};

// Messages of transfers of one stage, where any rows are sent on, are cut into this many pieces: of those who send
// everything at once, some hand on the first rows before they have the last.
//
// Throws std::invalid_argument, with words for the user, where rows come to a device twice, or not to their target, or
// are sent on from where they have not come. Devices must be below 2^15, stages at least -1.
Messages GatherMessages(const std::vector<planner::Transfer>& transfers, int32_t pieces = 1);

}  // namespace fastjax::simulator

#endif  // FASTJAX_SIMULATOR_MESSAGES_H_
