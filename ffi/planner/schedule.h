// What every scheduler implements: a subclass of Schedule. scheduler_info.h says how it is registered.
#ifndef FASTJAX_PLANNER_SCHEDULE_H_
#define FASTJAX_PLANNER_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "planner/matchings.h"
#include "planner/planner.h"
#include "planner/rate.h"
#include "planner/topology.h"
#include "planner/transfer.h"

namespace fastjax::planner {

class Schedule {
 public:
  virtual ~Schedule() = default;

  // Entries of `traffic` are not negative. Other methods are given the same matrix, which may be in another place by
  // then. `given`: matchings to take, if the scheduler uses any and they cover the traffic; null: none.
  virtual void Plan(const int64_t* traffic, const MatchingList* given) = 0;
  virtual int32_t num_stages() const = 0;
  // No block of the traffic has more rows.
  virtual int64_t block_bound() const = 0;
  // Transfers in which `device` is src or dst, or all of them for kEveryDevice; in one order, whichever is asked for.
  virtual void Append(const int64_t* traffic, int32_t device, TransferBuffer* out) = 0;
  // On each device of the server; known without listing anything.
  virtual int64_t StagingRows(int32_t /*server*/) const { return 0; }
  virtual Matched matched() const { return {}; }
  // Returns the predicted time of the exchange, by the cost model, without planning time.
  virtual Picoseconds PredictedTime(const int64_t* traffic) = 0;
  // For one that chooses between others; `self` otherwise.
  virtual Scheduler chosen(Scheduler self) const { return self; }
  // What looking at those that were not taken took, by the cost model.
  virtual Picoseconds ChoosingTime() const { return 0; }
  virtual const std::vector<Choice>* choices() const { return nullptr; }
};

// In a round a device, or server, sends to one other and receives from one at most. Visits the senders in order: all of
// `count`, or those that concern `own`: itself, and the one that sends to it, `to_own`, if any.
template <typename Visit>
void ForEachSender(int32_t count, int32_t own, int32_t to_own, Visit visit) {
  if (own == kEveryDevice) {
    for (int32_t sender = 0; sender < count; ++sender) visit(sender);
    return;
  }
  if (to_own >= 0 && to_own < own) visit(to_own);
  visit(own);
  if (to_own > own) visit(to_own);
}

// Rows that stay inside a server, straight to their target.
void AppendLocal(const Topology& topology, const int64_t* traffic, int32_t device, TransferBuffer* out);

// Every block r -> (r + shift) % devices that leaves its server, whole, ordered by sender.
void AppendShift(const Topology& topology, const int64_t* traffic, int32_t shift, int32_t stage, int32_t device,
                 TransferBuffer* out);

// Every block to the device `server_shift` servers and `local_shift` places on, whole, ordered by sender. Devices of
// one server never send to the same one in the same round, as they do with AppendShift. Blocks that stay inside a
// server are left out.
void AppendRound(const Topology& topology, const int64_t* traffic, int32_t server_shift, int32_t local_shift,
                 int32_t device, TransferBuffer* out);

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_SCHEDULE_H_
