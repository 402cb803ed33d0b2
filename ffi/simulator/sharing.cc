#include "simulator/sharing.h"

#include <algorithm>
#include <utility>

namespace fastjax::simulator {
namespace {

constexpr int8_t kSettled = -1;

}  // namespace

Sharing::Sharing(const Program& program) : program_(&program), slot_of_(program.capacities.size(), -1) {}

void Sharing::Share(const std::vector<int32_t>& tasks, std::vector<double>* rates) {
  rates->assign(tasks.size(), 0);
  if (tasks.size() == 1) {  // nearly all tasks of a good plan
    double rate = 0;
    for (const int32_t link : task(tasks[0]).links) {
      if (link == kNoLink) continue;
      const double most = program_->capacities[link];
      rate = rate == 0 ? most : std::min(rate, most);
    }
    (*rates)[0] = rate;
    return;
  }
  NumberLinks(tasks);
  ListTasksOfLinks();
  FindCapacities();
  for (int8_t priority = 0; priority < kPriorities; ++priority) Fill(priority, rates);
  for (const int32_t link : links_) slot_of_[link] = -1;
}

void Sharing::NumberLinks(const std::vector<int32_t>& tasks) {
  links_.clear();
  slots_.resize(tasks.size());
  waiting_.resize(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& here = task(tasks[i]);
    waiting_[i] = here.priority;
    for (size_t k = 0; k < here.links.size(); ++k) {
      slots_[i][k] = -1;
      if (here.links[k] == kNoLink) continue;
      int32_t& slot = slot_of_[here.links[k]];
      if (slot < 0) {
        slot = static_cast<int32_t>(links_.size());
        links_.push_back(here.links[k]);
      }
      slots_[i][k] = slot;
    }
  }
}

void Sharing::ListTasksOfLinks() {
  first_.assign(links_.size() + 1, 0);
  for (const auto& slots : slots_) {
    for (const int32_t slot : slots) {
      if (slot >= 0) ++first_[slot + 1];
    }
  }
  for (size_t slot = 0; slot < links_.size(); ++slot) first_[slot + 1] += first_[slot];
  listed_.resize(first_.back());
  open_.assign(first_.begin(), first_.end() - 1);
  for (size_t i = 0; i < slots_.size(); ++i) {
    for (const int32_t slot : slots_[i]) {
      if (slot >= 0) listed_[open_[slot]++] = static_cast<int32_t>(i);
    }
  }
}

void Sharing::FindCapacities() {
  left_.resize(links_.size());
  sent_to_.assign(links_.size(), -1);
  for (int32_t slot = 0; slot < static_cast<int32_t>(links_.size()); ++slot) {
    const int32_t link = links_[slot];
    double& left = left_[slot];
    left = program_->capacities[link];
    if (program_->has_incast(link)) left *= program_->efficiency(Senders(slot));
  }
}

// What those are worth whose tasks come to this link.
double Sharing::Senders(int32_t slot) {
  double senders = 0;
  for (int32_t k = first_[slot]; k < first_[slot + 1]; ++k) {
    const int32_t sender = slots_[listed_[k]][0];
    if (!program_->whole_senders) {
      senders += 1.0 / (first_[sender + 1] - first_[sender]);
    } else if (std::exchange(sent_to_[sender], slot) != slot) {
      ++senders;
    }
  }
  return senders;
}

void Sharing::Fill(int8_t priority, std::vector<double>* rates) {
  open_.assign(links_.size(), 0);
  for (size_t i = 0; i < slots_.size(); ++i) {
    for (const int32_t slot : slots_[i]) {
      if (slot >= 0) open_[slot] += waiting_[i] == priority;
    }
  }
  const auto offer = [&](int32_t slot) { return Offer(left_[slot] / open_[slot], slot); };
  for (int32_t slot = 0; slot < static_cast<int32_t>(links_.size()); ++slot) {
    if (open_[slot] > 0) offers_.push(offer(slot));
  }
  while (!offers_.empty()) {
    const Offer least = offers_.top();
    offers_.pop();
    if (open_[least.second] == 0) continue;
    // Offers only rise, as others are settled for less: one that has risen is put back.
    const Offer now = offer(least.second);
    if (now.first > least.first) {
      offers_.push(now);
    } else {
      Settle(now.second, now.first, priority, rates);
    }
  }
}

void Sharing::Settle(int32_t slot, double share, int8_t priority, std::vector<double>* rates) {
  for (int32_t k = first_[slot]; k < first_[slot + 1]; ++k) {
    const int32_t i = listed_[k];
    if (waiting_[i] != priority) continue;
    waiting_[i] = kSettled;
    (*rates)[i] = share;
    for (const int32_t other : slots_[i]) {
      if (other < 0) continue;
      double& left = left_[other];
      left = std::max(left - share, 0.0);
      --open_[other];
    }
  }
}

}  // namespace fastjax::simulator
