// SpreadOut: in stage d device r sends its block to device r + d. One-to-one without any balancing, so a stage lasts
// as long as its largest block.
#include "planner/schedule.h"

namespace fastjax::planner {
namespace {

class Spreadout final : public Schedule {
 public:
  explicit Spreadout(const Topology& topology) : topology_(topology), used_(topology.devices()) {}

  void Plan(const int64_t* traffic) override {
    traffic_ = traffic;
    MarkUsedShifts(topology_, traffic, used_.data());
    stages_ = 0;
    for (int64_t used : used_) stages_ += used != 0;
  }

  int32_t num_stages() const override { return stages_; }

  void Append(int32_t device, TransferBuffer* out) override {
    AppendLocal(topology_, traffic_, device, out);
    int32_t stage = 0;
    for (int32_t shift = 1; shift < topology_.devices(); ++shift) {
      if (used_[shift] != 0) AppendShift(topology_, traffic_, shift, stage++, device, out);
    }
  }

 private:
  Topology topology_;
  std::vector<int64_t> used_;
  const int64_t* traffic_ = nullptr;
  int32_t stages_ = 0;
};

}  // namespace

std::unique_ptr<Schedule> MakeSpreadout(const Topology& topology, int64_t /*row_bytes*/) {
  return std::make_unique<Spreadout>(topology);
}

}  // namespace fastjax::planner
