// Blocks that go straight from origin to target, by the distance d between them: device r sends to device r + d.
//
// SpreadOut makes each distance a stage: one-to-one without any balancing, so a stage lasts as long as its largest
// block. Direct, which is what NCCL and RCCL do, sends everything at once; the order only keeps senders that work
// through their lists from starting with the same receiver.
#include <algorithm>

#include "planner/schedule.h"

namespace fastjax::planner {
namespace {

class Straight final : public Schedule {
 public:
  Straight(const Topology& topology, bool staged) : topology_(topology), staged_(staged), used_(topology.devices()) {}

  void Plan(const int64_t* traffic) override {
    traffic_ = traffic;
    MarkUsedShifts(topology_, traffic, used_.data());
    const auto shifts = std::count_if(used_.begin(), used_.end(), [](int64_t used) { return used != 0; });
    stages_ = static_cast<int32_t>(staged_ ? shifts : std::min<int64_t>(shifts, 1));
  }

  int32_t num_stages() const override { return stages_; }

  void Append(int32_t device, TransferBuffer* out) override {
    AppendLocal(topology_, traffic_, device, out);
    int32_t stage = 0;
    for (int32_t shift = 1; shift < topology_.devices(); ++shift) {
      if (used_[shift] == 0) continue;
      AppendShift(topology_, traffic_, shift, stage, device, out);
      if (staged_) ++stage;
    }
  }

 private:
  Topology topology_;
  bool staged_;
  std::vector<int64_t> used_;
  const int64_t* traffic_ = nullptr;
  int32_t stages_ = 0;
};

}  // namespace

std::unique_ptr<Schedule> MakeDirect(const Topology& topology, int64_t /*row_bytes*/) {
  return std::make_unique<Straight>(topology, false);
}

std::unique_ptr<Schedule> MakeSpreadout(const Topology& topology, int64_t /*row_bytes*/) {
  return std::make_unique<Straight>(topology, true);
}

}  // namespace fastjax::planner
