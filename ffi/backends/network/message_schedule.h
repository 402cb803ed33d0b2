// Declares MessageSchedule: the steps of one process as messages and copies, and the order in which they may begin.
#ifndef FASTJAX_BACKENDS_NETWORK_MESSAGE_SCHEDULE_H_
#define FASTJAX_BACKENDS_NETWORK_MESSAGE_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/group_traffic.h"
#include "execution/device_plan.h"
#include "execution/lowering.h"
#include "execution/placement.h"
#include "execution/sum_job.h"
#include "runtime/copy_pool.h"
#include "runtime/staging_pool.h"
#include "runtime/transport.h"

namespace fastjax::network {

// The rows of one step: iovs of a message, or copies where both ends are local.
struct StepRows {
  int32_t round;
  int32_t first;  // of MessageSchedule::copies, or of MessageSchedule::iovs
  int32_t count;
  int64_t bytes;
};

// The steps in which one device sends, or receives, or copies in one phase of one stage. They begin together.
struct Round {
  int32_t first_step;
  int32_t steps;
  int32_t queue;
  int32_t waits;  // for this gate, or -1
};

// The rounds of one device, action and phase, in order of stages.
struct Queue {
  int32_t first_round;
  int32_t rounds;
};

// A gate of the lowering, and what waits for it.
struct Gate {
  int32_t missing = 0;  // steps that have to end before it opens
  int32_t sends = -1;   // a queue that waits for it, or -1
  int32_t copies = -1;  // a round that waits for it, or -1
};

// Later exchanges reuse it, and it allocates nothing once it has seen the largest.
class MessageSchedule {
 public:
  // Makes the schedule of plans that have been checked against the traffic. `args` is by position; devices of other
  // processes have sizes, offsets and numbers of rows, but no memory. The process has a device of the group. All
  // arguments must stay as they are until Release.
  Status Build(const CallSite& site, int32_t group, int32_t process, const std::vector<ExchangeArgs>& args,
               const DevicePlans& plans, const GroupTraffic& traffic);

  // Makes the schedule of rows that land on each other. Every block goes straight from its origin to its target, the
  // factors of its rows after the rows, and sum_job() adds them up.
  Status BuildSum(const CallSite& site, int32_t group, int32_t process, const std::vector<ExchangeArgs>& args,
                  const GroupTraffic& traffic);

  // The job that sums, to be run when all messages have arrived. The result has the same bits as in one process.
  PoolJob* sum_job() { return &sum_job_; }
  bool sums() const { return sums_; }

  // Returns staging memory to the pool, also after a build that failed. It may be called twice.
  void Release();

  // Returns the stages that have local steps, as the plan numbers them.
  const std::vector<int32_t>& stages() const { return lowering_.stages(); }
  int32_t plan_stages() const { return lowering_.plan_stages(); }
  const std::vector<Step>& steps() const { return lowering_.steps(); }
  const std::vector<StepRows>& rows() const { return rows_; }  // by step
  const std::vector<Round>& rounds() const { return rounds_; }
  const std::vector<Queue>& queues() const { return queues_; }  // receives first, then sends, then copies
  const std::vector<Gate>& gates() const { return gates_; }
  const std::vector<Iov>& iovs() const { return iovs_; }
  const std::vector<CopyOp>& copies() const { return copies_; }

  // Returns where the message of a step goes to or comes from.
  Route RouteOf(const Step& step) const;
  // Returns the tag of a step's message. It is the same at both ends, and for all messages of one phase from one device
  // to another, which are sent and received in order of stages.
  uint64_t TagOf(const Step& step) const;

 private:
  void Begin(const CallSite& site, int32_t group, int32_t process, const std::vector<ExchangeArgs>& args,
             const GroupTraffic& traffic);
  // Returns the arguments of the first local device.
  const ExchangeArgs& Here() const { return (*args_)[site_->position_at[first_here_]]; }
  int32_t QueueOf(const Step& step) const;
  void AddStep(const Step& step);
  void AddRows(const Step& step);
  void AddIov(std::byte* data, int64_t bytes);
  void AddCopy(const CopyOp& op);
  void FindQueues();
  void LinkGates();
  Status PlaceArrivals();
  int64_t ArrivalBytes(const Step& step) const;
  void AddFactors(const Step& step);
  void PlaceSums();

  const CallSite* site_ = nullptr;
  int32_t group_ = 0;
  const std::vector<ExchangeArgs>* args_ = nullptr;
  const GroupTraffic* traffic_ = nullptr;
  bool sums_ = false;

  Reach reach_;  // The devices of one process reach each other's memory.
  Placement placement_;
  Lowering lowering_;
  int32_t first_here_ = 0;  // rank

  std::vector<StepRows> rows_;
  std::vector<Round> rounds_;
  std::vector<Queue> queues_;
  std::vector<Gate> gates_;
  std::vector<Iov> iovs_;
  std::vector<CopyOp> copies_;

  StagingPool::Buffer arrivals_;  // blocks of other processes that wait to be summed
  std::vector<int64_t> arrival_;  // by step that receives: where they are, in bytes
  SumJob sum_job_;
};

}  // namespace fastjax::network

#endif  // FASTJAX_BACKENDS_NETWORK_MESSAGE_SCHEDULE_H_
