// Declares LaunchSchedule: a plan as the GPUs of this process execute it. Pipeline steps follow one another; the copies
// and messages of one pipeline step go on side by side.
#ifndef FASTJAX_BACKENDS_GPU_LAUNCH_SCHEDULE_H_
#define FASTJAX_BACKENDS_GPU_LAUNCH_SCHEDULE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "backends/gpu/device/layout.h"
#include "exchange/group_traffic.h"
#include "execution/device_plan.h"
#include "execution/lowering.h"
#include "execution/placement.h"
#include "kernels/gathers.h"
#include "kernels/indexed_sums.h"
#include "kernels/moves.h"
#include "kernels/sum.h"

namespace fastjax::gpu {

// Moves, or gathers, of one launch: [first, first + count) of their call's, on a line of their own.
struct MoveList {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end = 0;
  int64_t bytes = 0;  // less than the line is long, which has gaps

  // Adds a run to `dst`, which will be number `listed` of the call's; returns where on the line it begins.
  int64_t Extend(size_t listed, const std::byte* dst, int64_t run_bytes) {
    if (count == 0) first = static_cast<int64_t>(listed);
    const int64_t begin = kernels::NextBegin(end, dst);
    end = begin + run_bytes;
    bytes += run_bytes;
    ++count;
    return begin;
  }
};

// What one call does in one pipeline step. Messages that lie in many runs are packed before, and unpacked after they
// have moved; copies are made meanwhile. Messages between ranks of the call itself are runs like others. What is read
// by indices is gathered.
struct CallStep {
  MoveList pack;
  MoveList pack_gathers;
  MoveList deliver;
  MoveList copy;
  MoveList copy_gathers;
  MoveList unpack;
};

// Sums to be made after the last pipeline step, by lists of what lands on each row: those of the devices, or of the
// host, which knows them where no indices name rows.
struct SumList {
  // One rank's result. What is its own in the lists below begins there.
  struct Result {
    kernels::IndexedSum sum;
    size_t first_slice;
    size_t first_start;
    size_t first_entry;
  };

  std::vector<Result> results;
  std::vector<kernels::Slice> slices;
  std::vector<int32_t> starts;  // this and the next: empty where devices have them
  std::vector<int32_t> entries;
};

// Reused from exchange to exchange without allocating once it has seen the largest.
class LaunchSchedule {
 public:
  // What is made of rows.
  struct Kind {
    bool sums = false;     // they land on each other, or are summed by indices
    bool indexed = false;  // rows of operand space are named by indices
  };

  // Takes staging memory. `args` by position. For sums, every block goes straight from its origin to its target, where
  // rows are added up, and no plans are needed. All of it must stay as it is until the pipeline steps have been put on
  // streams.
  Status Build(const CallSite& site, const std::vector<ExchangeArgs>& args, const DevicePlans& plans, Kind kind,
               const GroupTraffic& traffic, const Layout& layout);

  int32_t count() const { return pipeline_steps_; }
  int32_t calls() const { return static_cast<int32_t>(moves_.size()); }
  const CallStep& at(int32_t pipeline_step, int32_t call) const {
    return lists_[static_cast<size_t>(pipeline_step) * moves_.size() + static_cast<size_t>(call)];
  }
  const std::vector<kernels::Move>& moves(int32_t call) const { return moves_[static_cast<size_t>(call)]; }
  const std::vector<kernels::Gather>& gathers(int32_t call) const { return gathers_[static_cast<size_t>(call)]; }
  // The messages of one pipeline step, between calls.
  const MessageEnd* messages(int32_t pipeline_step) const {
    return messages_.data() + first_message_[static_cast<size_t>(pipeline_step)];
  }
  int64_t num_messages(int32_t pipeline_step) const {
    return first_message_[static_cast<size_t>(pipeline_step) + 1] - first_message_[static_cast<size_t>(pipeline_step)];
  }
  bool has_messages() const { return !messages_.empty(); }
  bool sums() const { return kind_.sums; }
  int64_t row_bytes() const { return placement_.row_bytes(); }
  kernels::SumTypes types() const { return types_; }
  const SumList& sum(int32_t call) const { return sum_[static_cast<size_t>(call)]; }

 private:
  // What a step sends or receives, as one message.
  struct Packing {
    int64_t ranges = 0;   // where the rows lie
    bool apart = false;   // they are gathered, or have factors, or stay in the buffer
    int64_t bytes = 0;    // of all of them
    int64_t buffer = -1;  // offset of the message in its call's buffer; -1: it lies in one range where it is
    bool IsWhole() const { return ranges == 1 && !apart; }
  };

  // One end of a message that a rank of a call has for another rank of it, in the pipeline step that is being arranged.
  struct OwnMessage {
    std::pair<int32_t, int32_t> ranks;  // the sender and the receiver
    size_t number;                      // of the pipeline step's, which keeps the order of those between two ranks
    std::byte* data;
    int64_t bytes;
  };

  Status Lower();
  Status Arrange();
  void MeasureMessages();
  Status TakeBuffers(const std::vector<int32_t>& order);
  void AddCopies(const Step& step, int32_t pipeline_step);
  void MakeMessage(int32_t index, int32_t pipeline_step);
  void Pack(const Step& step, std::byte* message, CallStep* lists);
  void Unpack(const Step& step, const std::byte* message, CallStep* lists);
  Status DeliverOwn(int32_t pipeline_step);
  // Blocks that are to be summed stay in the buffer that they arrive in.
  bool StaysInBuffer(const Step& step) const { return sums() && step.action == Action::kReceive; }
  // Rows of an operand are read by indices.
  bool IsGathered(const planner::Transfer& transfer) const {
    return kind_.indexed && !kind_.sums && transfer.src_row == planner::Transfer::kInPlace;
  }
  bool IsGathered(const Step& step, const planner::Transfer& transfer) const {
    return step.action != Action::kReceive && IsGathered(transfer);
  }
  // Returns the number of the step's pipeline step in the plan, which is the same in all processes.
  int32_t PipelineStepOf(const Step& step) const {
    return lowering_.pipeline_steps()[static_cast<size_t>(step.pipeline_step)];
  }
  int32_t CallOf(const Step& step) const { return layout_->call_of[static_cast<size_t>(step.here)]; }
  CallStep& ListsOf(int32_t pipeline_step, int32_t call) {
    return lists_[static_cast<size_t>(pipeline_step) * moves_.size() + static_cast<size_t>(call)];
  }
  void Measure(const Step& step, const planner::Transfer& transfer, Packing* packing) const;
  template <typename Visit>
  void ForEachRange(const Step& step, const planner::Transfer& transfer, Visit visit) const;
  // Calls visit(const std::byte*, bytes) for the factors of what is sent to be summed.
  template <typename Visit>
  void ForEachFactors(const Step& step, Visit visit) const;
  size_t SlotOf(const Step& step) const;  // of its call's buffer
  std::byte* BufferOf(int32_t step) const;
  void AddMove(int32_t call, MoveList* list, std::byte* dst, const std::byte* src, int64_t bytes);
  void AddGather(int32_t call, MoveList* list, std::byte* dst, int32_t origin, const Run& run);
  const ExchangeArgs& ArgsOf(int32_t rank) const {
    return (*args_)[static_cast<size_t>(site_->position_at[static_cast<size_t>(rank)])];
  }
  Status AddAllSums();
  Status AddSum(int32_t target);
  void ListEntries(int32_t target, SumList* list);
  kernels::Summand FirstOf(int32_t target, int32_t origin, const Run& run, int64_t done) const;

  const CallSite* site_ = nullptr;
  const std::vector<ExchangeArgs>* args_ = nullptr;
  const GroupTraffic* traffic_ = nullptr;
  const Layout* layout_ = nullptr;
  const DevicePlans* plans_ = nullptr;
  Reach reach_;
  Placement placement_;
  Lowering lowering_;
  int32_t pipeline_steps_ = 0;
  Kind kind_;
  kernels::SumTypes types_ = {};
  int64_t factor_bytes_ = 0;  // of a row that is summed

  std::vector<Packing> packing_;     // by step; of copies unused
  std::vector<int64_t> used_;        // by call and action: bytes of its buffer in one pipeline step
  std::vector<int64_t> most_;        // and in the pipeline step that uses most
  std::vector<std::byte*> buffers_;  // by call and action
  std::vector<CallStep> lists_;
  std::vector<std::vector<kernels::Move>> moves_;      // by call
  std::vector<std::vector<kernels::Gather>> gathers_;  // by call
  std::vector<OwnMessage> own_sent_;
  std::vector<OwnMessage> own_received_;
  std::vector<MessageEnd> messages_;
  std::vector<int64_t> first_message_;   // by pipeline step
  std::vector<SumList> sum_;             // by call
  std::vector<ReturnedSlice> returned_;  // to one target
  std::vector<int32_t> next_;            // by row of it: where its next entry goes
};

}  // namespace fastjax::gpu

#endif  // FASTJAX_BACKENDS_GPU_LAUNCH_SCHEDULE_H_
