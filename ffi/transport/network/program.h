// What one process does of one exchange.
#ifndef FASTJAX_TRANSPORT_NETWORK_PROGRAM_H_
#define FASTJAX_TRANSPORT_NETWORK_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "planner/transfer.h"
#include "transport/execution/placement.h"
#include "transport/execution/staging.h"
#include "transport/in_process/copy_pool.h"
#include "transport/network/wire.h"
#include "transport/traffic.h"

namespace fastjax::transport::network {

enum class Action : uint8_t { kReceive, kSend, kCopy };

// The rows that one device hands to another in one phase of one stage: a message, or copies where both are here.
struct Step {
  Action action;
  planner::Phase phase;
  int32_t stage;   // of Program::stages
  int32_t device;  // here: number in Program::devices; of a copy, its source
  int32_t peer;    // rank of the other end
  int32_t round;
  int32_t opens;  // a gate that waits for this step, or -1
  int32_t first;  // of Program::copies, or of Program::pieces
  int32_t count;
  int64_t bytes;
};

// What one device sends, or receives, or copies in one phase of one stage: steps that begin together.
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

// Opens when `missing` steps have ended: rows that a device was to get before it can hand them on.
struct Gate {
  int32_t missing = 0;
  int32_t sends = -1;   // a queue that waits for it
  int32_t copies = -1;  // a round that does
};

// Reused from exchange to exchange without allocating once it has seen the largest.
class Program {
 public:
  // `args` by position; those of other processes have sizes, offsets and numbers of rows, but neither memory nor table.
  // `tables` by rank, null for those of other processes; with `backwards` they are read as those of the transposed
  // traffic. The plan has been checked against the traffic. All of it must stay as it is until Release.
  Status Build(const CallSite& site, int32_t group, int32_t process, const std::vector<ExchangeArgs>& args,
               const std::vector<const int32_t*>& tables, const GroupTraffic& traffic, bool backwards);

  // For rows that land on each other: every block goes straight from its origin to its target, and Sum adds them up.
  Status BuildSum(const CallSite& site, int32_t group, int32_t process, const std::vector<ExchangeArgs>& args,
                  const GroupTraffic& traffic);

  // To be called when all messages are here. The result is that of one process, bit by bit.
  void Sum() const;
  bool sums() const { return sums_; }

  // Gives staging memory back; also after a build that failed. May be called again.
  void Release();

  const std::vector<int32_t>& devices() const { return devices_; }  // ranks of those here
  const std::vector<int32_t>& stages() const { return stages_; }    // that have steps here, as the plan numbers them
  int32_t plan_stages() const { return plan_stages_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Round>& rounds() const { return rounds_; }
  const std::vector<Queue>& queues() const { return queues_; }  // receives first, then sends, then copies
  const std::vector<Gate>& gates() const { return gates_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<execution::CopyOp>& copies() const { return copies_; }

  // Where the messages of a step go to or come from.
  Route RouteOf(const Step& step) const;
  // What tells messages apart: equal at both ends, and for messages of one phase from one device to another only.
  // Those are sent, and received, in order of stages.
  uint64_t TagOf(const Step& step) const;

 private:
  struct Entry {
    int32_t queue;
    int32_t stage;
    int32_t peer;
    int32_t rank;   // whose table it is in
    int32_t index;  // and where
  };

  void Begin(const CallSite& site, int32_t group, int32_t process);
  const ExchangeArgs& Here() const { return (*args_)[site_->position_at[devices_.front()]]; }
  int32_t QueueOf(Action action, planner::Phase phase, int32_t device) const;
  Status TakeEntries(const std::vector<const int32_t*>& tables, bool backwards);
  void TakeEntry(int32_t rank, int32_t index, const planner::Transfer& transfer);
  void NumberStages();
  void SortEntries();
  template <typename Key>
  void SortBy(int32_t keys, Key key);
  void AddStep(Action action, const planner::Transfer& transfer, int32_t stage);
  void AddRows(const planner::Transfer& transfer);
  void AddPiece(std::byte* data, int64_t bytes);
  void AddCopy(const execution::CopyOp& op);
  int32_t GateOf(planner::Phase fed_by, int32_t device, int32_t stage) const;
  void LinkGates();
  void FindQueues();
  Status PlaceArrivals();
  std::byte* Arrival(int32_t origin, int32_t target) const;
  void AddBlocks(Action action, int32_t here);

  const CallSite* site_ = nullptr;
  int32_t group_ = 0;
  const std::vector<ExchangeArgs>* args_ = nullptr;
  const GroupTraffic* traffic_ = nullptr;
  bool sums_ = false;
  int32_t plan_stages_ = 0;

  std::vector<int32_t> devices_;
  std::vector<int32_t> device_at_;         // by rank: number in devices_, or -1
  std::vector<int32_t> index_in_process_;  // by rank: among the group's devices of its process
  std::vector<int32_t> next_index_;        // by process
  std::vector<int32_t> stages_;
  std::vector<Entry> entries_;
  std::vector<Entry> sorted_;
  std::vector<int32_t> begin_;

  std::vector<Step> steps_;
  std::vector<Round> rounds_;
  std::vector<Queue> queues_;
  std::vector<Gate> gates_;
  std::vector<Piece> pieces_;
  std::vector<execution::CopyOp> copies_;

  execution::Placement placement_;
  execution::StagingPool::Buffer arrivals_;  // blocks of other processes that wait to be summed
  std::vector<int64_t> arrival_;             // by number of target and rank of origin: where they are, in bytes
  std::vector<const int32_t*> no_tables_;
};

}  // namespace fastjax::transport::network

#endif  // FASTJAX_TRANSPORT_NETWORK_PROGRAM_H_
