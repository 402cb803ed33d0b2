// Implements the text that says what a runner waits for.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "backends/network/runner.h"

namespace fastjax::network {

namespace {

// The most entries of a list that the text names: enough to see where an exchange hangs.
constexpr size_t kNamed = 6;

std::string Plural(int64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string DeviceList(const std::set<int32_t>& positions) {
  std::string list = positions.size() == 1 ? "device " : "devices ";
  const char* separator = "";
  for (const int32_t position : positions) {
    list += separator + std::to_string(position);
    separator = ", ";
  }
  return list;
}

}  // namespace

// The messages of one direction and phase with one process that are missing. The stage is that of the first of them.
struct Runner::Waited {
  const Step* first = nullptr;
  int64_t messages = 0;
  std::set<int32_t> positions;
};

std::string Runner::Waiting() const {
  std::map<std::tuple<Action, planner::Phase, int32_t>, Waited> all;
  int64_t copies = 0;
  for (size_t i = 0; running_ && i < states_.size(); ++i) {
    const Step& step = schedule_->steps()[i];
    if (states_[i] != State::kBegun) continue;
    if (step.action == Action::kCopy) {
      ++copies;
      continue;
    }
    Waited& waited = all[{step.action, step.phase, ProcessOf(step)}];
    if (waited.first == nullptr || step.stage < waited.first->stage) waited.first = &step;
    ++waited.messages;
    waited.positions.insert(site_->position_at[step.peer]);
  }
  std::string text;
  size_t named = 0;
  for (const auto& [key, waited] : all) {
    if (named++ == kNamed) break;
    const bool receives = std::get<Action>(key) == Action::kReceive;
    if (!text.empty()) text += "; ";
    text += StageName(*waited.first) + ": " + Plural(waited.messages, "message") +
            (receives ? " to receive from " : " to send to ") + transport_->Describe(std::get<int32_t>(key)) + ": " +
            DeviceList(waited.positions);
  }
  if (all.size() > kNamed) text += "; and " + std::to_string(all.size() - kNamed) + " more";
  if (site_ != nullptr && site_->groups() > 1 && !text.empty()) text += " (group " + std::to_string(group_) + ")";
  if (copies > 0) text += (text.empty() ? "" : "; ") + Plural(copies, "copy job") + " inside this process";
  return text.empty() ? "nothing" : text;
}

}  // namespace fastjax::network
