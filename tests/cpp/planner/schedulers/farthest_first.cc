// A scheduler for added_scheduler_test, complete: blocks go straight, in stages by distance, the farthest first. Its
// price is a lie, so that "auto" takes it wherever it may.
#include <algorithm>
#include <memory>
#include <vector>

#include "planner/schedule.h"

namespace fastjax::planner {
namespace {

class FarthestFirst final : public Schedule {
 public:
  explicit FarthestFirst(const Topology& topology) : topology_(topology) {}

  void Plan(const int64_t* traffic, const MatchingList* /*given*/) override {
    const int32_t devices = topology_.devices();
    shifts_.clear();
    for (int32_t shift = devices - 1; shift > 0; --shift) {
      if (Crosses(traffic, shift)) shifts_.push_back(shift);
    }
    most_ = *std::max_element(traffic, traffic + int64_t{devices} * devices);
  }
  int32_t num_stages() const override { return static_cast<int32_t>(shifts_.size()); }
  int64_t block_bound() const override { return most_; }
  void Append(const int64_t* traffic, int32_t device, TransferBuffer* out) override {
    AppendLocal(topology_, traffic, device, out);
    for (size_t i = 0; i < shifts_.size(); ++i) {
      AppendShift(topology_, traffic, shifts_[i], static_cast<int32_t>(i), device, out);
    }
  }
  Picoseconds PredictedTime(const int64_t* /*traffic*/) override { return 1; }

 private:
  bool Crosses(const int64_t* traffic, int32_t shift) const {
    const int32_t devices = topology_.devices();
    for (int32_t src = 0; src < devices; ++src) {
      const int32_t dst = (src + shift) % devices;
      if (topology_.server_of(src) != topology_.server_of(dst) && traffic[int64_t{src} * devices + dst] > 0)
        return true;
    }
    return false;
  }

  Topology topology_;
  int64_t most_ = 0;
  std::vector<int32_t> shifts_;
};

std::unique_ptr<Schedule> Make(const Topology& topology, int64_t /*row_bytes*/) {
  return std::make_unique<FarthestFirst>(topology);
}

// More than any other scheduler asks for, so that tables of "auto" show that it is asked.
int64_t MaxEntries(const Topology& topology) {
  return int64_t{100} * topology.devices() * topology.devices() * topology.servers;
}

}  // namespace

constexpr SchedulerInfo kFarthestFirstScheduler = {
    {"farthest_first", "blocks go straight, the farthest first",
     /*order=*/15, /*stages_rows=*/false, NicNeed::kEachDevice, Choosing::kConsidered},
    Make,
    MaxEntries,
    {1000},
    {1000},
};

}  // namespace fastjax::planner
