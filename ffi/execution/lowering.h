// Declares Lowering, which turns the plans of this process's devices into steps: who hands which rows to whom, and
// after which other steps. A backend decides when and how a step is executed.
#ifndef FASTJAX_EXECUTION_LOWERING_H_
#define FASTJAX_EXECUTION_LOWERING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/group_traffic.h"
#include "exchange/status.h"
#include "execution/device_plan.h"
#include "execution/numbering.h"
#include "execution/pipeline.h"
#include "execution/placement.h"
#include "planner/table.h"
#include "planner/transfer.h"

namespace fastjax {

// Which devices this process executes the plan of, and which reach each other's memory. All is by rank.
struct Reach {
  std::vector<uint8_t> here;       // 0 for devices of other processes
  std::vector<int32_t> domain_of;  // Devices of one domain reach each other's memory, and are of one process.
  bool Copies(int32_t a, int32_t b) const {
    return domain_of[static_cast<size_t>(a)] == domain_of[static_cast<size_t>(b)];
  }
};

// What the device `here` does in a step. Its source makes a copy, where both ends are in one domain. Between domains
// one end sends a message and the other receives it.
enum class Action : uint8_t { kReceive, kSend, kCopy };
inline constexpr int32_t kActions = 3;

// The rows that one device hands to another in one phase of one stage.
struct Step {
  Action action;
  planner::Phase phase;
  int32_t stage;          // number in Lowering::stages
  int32_t pipeline_step;  // number in Lowering::pipeline_steps
  int32_t here;           // rank
  int32_t peer;           // rank of the other end
  int32_t opens;          // the gate that is shut until this step has ended, or -1; once gates are linked
  int32_t waits;          // the gate that has to be open before this step begins, or -1
  int64_t first_transfer;
  int64_t transfers;
};

// Later exchanges reuse it, and it allocates nothing once it has seen the largest.
class Lowering {
 public:
  // Forgets all steps.
  void Clear();
  // Makes the steps of plans. Refuses plans that `placement` refuses. There are no steps where rows have no bytes.
  Status Lower(const Reach& reach, const DevicePlans& plans, const Placement& placement);

  // Makes the steps of an exchange whose rows land on each other. A block whose origin and target are in different
  // domains must arrive before it is summed: it is one step at each end.
  void LowerBlocks(const Reach& reach, const GroupTraffic& traffic, const Placement& placement);
  // Returns the step that receives a block which `target` sums; -1: the block is read from its origin's memory.
  int32_t ArrivalOf(int32_t origin, int32_t target) const;

  // Returns the steps in order of action, phase, local device, stage and peer.
  const std::vector<Step>& steps() const { return steps_; }
  // Returns the transfers of a step in the order of the plan, which is the same at both ends of a message.
  planner::TransferRange TransfersOf(const Step& step) const {
    const planner::Transfer* const first = sorted_transfers_.data() + step.first_transfer;
    return {first, first + step.transfers};
  }
  // Returns the ranks of the local devices, in order.
  const std::vector<int32_t>& devices() const { return devices_; }
  // Returns the place of a rank among them, or -1.
  int32_t NumberOf(int32_t rank) const { return number_of_[static_cast<size_t>(rank)]; }
  // Returns the stages that have steps here, as the plan numbers them. Local steps are of stage -1.
  const std::vector<int32_t>& stages() const { return stages_.values(); }
  // Returns the pipeline steps that have steps here, as the plan numbers them. What is in one of them depends only on
  // what is in earlier ones.
  const std::vector<int32_t>& pipeline_steps() const { return pipeline_steps_.values(); }
  // Both count over the plans of the devices here.
  int32_t plan_stages() const { return pipeline_.plan_stages(); }
  int64_t plan_pipeline_steps() const { return plan_pipeline_steps_; }
  // Finds gates, the steps that open them and the steps that wait for them. Backends that execute one pipeline step
  // after the other need none.
  void LinkGates();
  // Returns, by gate, the number of steps that must end before it opens. Those bring a device its rows of one stage, by
  // balance or by scale-out, so that the device can hand them on.
  const std::vector<int32_t>& gates() const { return gates_; }

  // Returns indices of steps, by pipeline step and then in the order of steps().
  const std::vector<int32_t>& ByPipelineStep();

 private:
  // The part of one local device in a transfer.
  struct Entry {
    int32_t transfer;  // its place among those taken
    int32_t key;       // its kind; once stages have their numbers, its kind * stages + stage
    int32_t stage;     // of the plan
    int32_t peer;
  };

  // Action and phase.
  static constexpr int32_t kKinds = kActions * kPhases;
  // For at most so many entries, sorting by comparison is faster than by counting.
  static constexpr size_t kFewEntries = 32;

  void Begin(const Reach& reach);
  bool Take(const Reach& reach, const DevicePlan& plan, int32_t rank, const Placement& placement);
  void TakeBlocks(const Reach& reach, const GroupTraffic& traffic, int32_t origin);
  void AddEntry(Action action, const planner::Transfer& transfer, size_t at);
  void Arrange();
  void SortDevice(size_t first, size_t last);
  template <typename Key>
  void SortBy(int32_t keys, const Entry* from, Entry* to, size_t count, Key key);
  void FindPipelineSteps();
  size_t PlaceOf(planner::Phase phase, int32_t stage) const {
    return static_cast<size_t>(phase) * stages().size() + static_cast<size_t>(stage);
  }
  void MakeSteps();
  void AddSteps(int32_t kind, int32_t here, size_t first, size_t last);
  size_t GateOf(planner::Phase fed_by, int32_t rank, int32_t stage) const;

  int32_t ranks_ = 0;
  Pipeline pipeline_;
  int64_t plan_pipeline_steps_ = 1;
  std::vector<int32_t> devices_;
  std::vector<int32_t> number_of_;
  std::vector<planner::Transfer> taken_;  // in the order of the plans; or blocks to be summed
  Numbering stages_;
  Numbering pipeline_steps_;
  std::vector<int32_t> pipeline_step_of_;  // by phase and stage; -1: none
  std::vector<Entry> entries_;             // device by device
  std::vector<size_t> device_end_;         // where the entries of each end
  std::vector<size_t> kind_begin_;         // by device and kind, and behind the last kind
  std::vector<Entry> scratch_;
  std::vector<size_t> begin_;
  std::vector<planner::Transfer> sorted_transfers_;  // step by step
  std::vector<Step> steps_;
  std::vector<int32_t> gates_;
  std::vector<int32_t> by_pipeline_step_;
};

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_LOWERING_H_
