// Plain fan-out: every block goes straight to its target, all at once. Blocks are listed by distance, so that
// senders that do work in list order do not start with the same receiver.
#include <algorithm>

#include "planner/schedule.h"

namespace fastjax::planner {
namespace {

class Direct final : public Schedule {
 public:
  explicit Direct(const Topology& topology) : topology_(topology), used_(topology.devices()) {}

  void Plan(const int64_t* traffic) override {
    traffic_ = traffic;
    MarkUsedShifts(topology_, traffic, used_.data());
    stages_ = std::any_of(used_.begin(), used_.end(), [](int64_t used) { return used != 0; }) ? 1 : 0;
  }

  int32_t num_stages() const override { return stages_; }

  void Append(int32_t device, TransferBuffer* out) override {
    AppendLocal(topology_, traffic_, device, out);
    for (int32_t shift = 1; shift < topology_.devices(); ++shift) {
      if (used_[shift] != 0) AppendShift(topology_, traffic_, shift, 0, device, out);
    }
  }

 private:
  Topology topology_;
  std::vector<int64_t> used_;
  const int64_t* traffic_ = nullptr;
  int32_t stages_ = 0;
};

}  // namespace

std::unique_ptr<Schedule> MakeDirect(const Topology& topology, int64_t /*row_bytes*/) {
  return std::make_unique<Direct>(topology);
}

}  // namespace fastjax::planner
