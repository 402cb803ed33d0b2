// A plan as the GPUs of this process execute it: beats, one after the other, of copies and messages that go on side by
// side.
#ifndef FASTJAX_TRANSPORT_GPU_BEATS_H_
#define FASTJAX_TRANSPORT_GPU_BEATS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/moves.h"
#include "planner/transfer.h"
#include "transport/execution/placement.h"
#include "transport/gpu/channel.h"
#include "transport/gpu/layout.h"
#include "transport/traffic.h"

namespace fastjax::transport::gpu {

// Runs that one launch of a kernel copies: [first, first + count) of their lane's, on a line of their own.
struct MoveList {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end = 0;
  int64_t bytes = 0;  // less than the line is long, which has gaps
};

// What one lane does in one beat. Messages that lie in many runs are packed before, and unpacked after they have moved;
// copies are made meanwhile. Messages between ranks of the lane itself are runs like others.
struct LaneBeat {
  MoveList pack;
  MoveList deliver;
  MoveList copy;
  MoveList unpack;
};

// Sums to be made after the last beat.
struct SumList {
  std::vector<kernels::Landing> landings;
  std::vector<const std::byte*> sources;
  int64_t end = 0;
};

// Reused from exchange to exchange without allocating once it has seen the largest.
class Beats {
 public:
  // Takes staging memory. `args` by position; `tables` by rank, null for those of other processes. `sums`: rows land on
  // each other; every block goes straight from its origin to its target, where they are added up, and no tables are
  // needed. All of it must stay as it is until the beats have been put on streams.
  Status Begin(const CallSite& site, const std::vector<ExchangeArgs>& args, const std::vector<const int32_t*>& tables,
               bool sums, const GroupTraffic& traffic, const Layout& layout);
  // Staging, which may also be told of devices of other processes that share the domain of those here.
  execution::Placement& placement() { return placement_; }
  // With `backwards`, tables are read as those of the transposed traffic.
  Status Build(bool backwards);

  int32_t count() const { return beats_; }
  int32_t lanes() const { return static_cast<int32_t>(moves_.size()); }
  const LaneBeat& at(int32_t beat, int32_t lane) const {
    return lists_[static_cast<size_t>(beat) * moves_.size() + static_cast<size_t>(lane)];
  }
  const std::vector<kernels::Move>& moves(int32_t lane) const { return moves_[static_cast<size_t>(lane)]; }
  // Of one beat, between lanes.
  const Message* messages(int32_t beat) const { return messages_.data() + first_message_[static_cast<size_t>(beat)]; }
  int64_t num_messages(int32_t beat) const {
    return first_message_[static_cast<size_t>(beat) + 1] - first_message_[static_cast<size_t>(beat)];
  }
  bool has_messages() const { return !messages_.empty(); }
  bool sums() const { return sums_; }
  kernels::ElementKind element() const { return args_->front().element; }
  const SumList& sum(int32_t lane) const { return sum_[static_cast<size_t>(lane)]; }

 private:
  // Memory of lanes, for staging.
  class LaneMemory final : public execution::StagingMemory {
   public:
    std::byte* Take(int32_t rank, int64_t bytes) override;
    const Layout* layout = nullptr;
  };

  enum Kind : int32_t { kSend, kReceive, kCopy };

  // What one device hands to another in one phase of one beat, in the order of the plan: a message, once it has memory
  // of its own.
  struct Parcel {
    int32_t beat;
    Kind kind;
    int32_t here;
    int32_t peer;
    int64_t first_key;
    int64_t keys;
    int64_t pieces = 0;
    int64_t bytes = 0;
    int64_t buffer = -1;  // offset of it in its lane's buffer; -1: it lies in one piece where it is
  };

  // A message that a rank of a lane has for another one of it, in the beat that is being arranged.
  struct Posted {
    std::pair<int32_t, int32_t> way;  // from whom to whom
    const std::byte* data;
    int64_t bytes;
    std::byte* target;  // once the receiver has been seen
  };

  Status BuildSum();
  Status TakeEntries(bool backwards);
  void AddCopies(const Parcel& parcel);
  void TakeTransfer(int32_t rank, const planner::Transfer& transfer, int32_t beat);
  void AddKey(int32_t beat, Kind kind, int32_t here, int32_t peer, const planner::Transfer& transfer);
  Status Arrange(bool arrivals);
  void FindParcels();
  Status TakeBuffers(bool arrivals);
  Status MakeMessage(const Parcel& parcel, bool arrivals);
  Status Deliver(const Parcel& parcel, std::byte* data);
  Status EndBeat(int32_t beat);
  Status Disagree(const std::pair<int32_t, int32_t>& way) const;
  const planner::Transfer& TransferOf(uint64_t key) const;
  LaneBeat& ListsOf(int32_t beat, int32_t lane) {
    return lists_[static_cast<size_t>(beat) * moves_.size() + static_cast<size_t>(lane)];
  }
  template <typename Visit>
  void ForEachPiece(const Parcel& parcel, Visit visit) const;
  size_t SlotOf(const Parcel& parcel) const;  // of its lane's buffer
  std::byte* BufferOf(const Parcel& parcel) const;
  void AddMove(int32_t lane, MoveList* list, std::byte* dst, const std::byte* src, int64_t bytes);
  void TakeBlocks(int32_t rank);
  void AddSums(int32_t target);
  std::byte* Arrival(int32_t origin, int32_t target) const;

  const CallSite* site_ = nullptr;
  const std::vector<ExchangeArgs>* args_ = nullptr;
  const GroupTraffic* traffic_ = nullptr;
  const Layout* layout_ = nullptr;
  const std::vector<const int32_t*>* tables_ = nullptr;
  std::vector<const int32_t*> no_tables_;
  LaneMemory memory_;
  execution::Placement placement_;
  int32_t beats_ = 0;
  bool sums_ = false;

  std::vector<planner::Transfer> transfers_;
  std::vector<uint64_t> keys_;  // of transfers: by beat, kind, device, peer and phase
  std::vector<Parcel> parcels_;
  std::vector<std::byte*> buffers_;  // by lane and kind
  std::vector<Posted> posted_;       // by way, and those of one way in order
  std::pair<int32_t, int32_t> last_way_;
  size_t of_last_way_ = 0;  // received so far
  std::vector<LaneBeat> lists_;
  std::vector<std::vector<kernels::Move>> moves_;  // by lane
  std::vector<Message> messages_;
  std::vector<int64_t> first_message_;  // by beat
  std::vector<SumList> sum_;            // by lane
};

}  // namespace fastjax::transport::gpu

#endif  // FASTJAX_TRANSPORT_GPU_BEATS_H_
