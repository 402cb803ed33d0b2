#include "simulator/sequence.h"

#include <algorithm>
#include <utility>

namespace fastjax::simulator {

Sequence::Sequence(Program* program, int32_t devices, int32_t window)
    : program_(program), of_(static_cast<size_t>(devices)) {
  for (Step& step : of_) step.gates.assign(static_cast<size_t>(window), -1);
}

void Sequence::Add(int32_t device, int32_t stage, int32_t message) {
  Step& step = of_[static_cast<size_t>(device)];
  if (step.stage != stage) {
    step.stage = stage;
    std::rotate(step.gates.begin(), step.gates.begin() + 1, step.gates.end());
    step.gates.back() = Gate(std::exchange(step.members, {}));
  }
  step.members.push_back(message);
  if (step.gates.front() >= 0) program_->edges.push_back({step.gates.front(), message});
}

int32_t Sequence::Gate(const std::vector<int32_t>& members) {
  if (members.empty()) return -1;
  if (members.size() == 1) return members[0];
  const auto gate = static_cast<int32_t>(program_->tasks.size());
  program_->tasks.emplace_back();
  for (const int32_t member : members) program_->edges.push_back({member, gate});
  return gate;
}

}  // namespace fastjax::simulator
