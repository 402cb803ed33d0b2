// What is simulated: tasks that wait for each other, and the links that they share.
#ifndef FASTJAX_SIMULATOR_PROGRAM_H_
#define FASTJAX_SIMULATOR_PROGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace fastjax::simulator {

inline constexpr int32_t kNoLink = -1;

template <typename T>
using LeastFirst = std::priority_queue<T, std::vector<T>, std::greater<>>;

// Bytes that flow over up to three links. A task without bytes is a gate, and takes its start-up only.
struct Task {
  double start_up = 0;  // seconds from when nothing has to be waited for to when bytes flow
  double bytes = 0;
  std::array<int32_t, 3> links = {kNoLink, kNoLink, kNoLink};
  int8_t priority = 0;  // those of a lower number get what they can before others get anything
};

inline constexpr int8_t kPriorities = 3;

struct Edge {
  int32_t before;
  int32_t after;
};

struct Program {
  std::vector<double> capacities;  // of links, bytes/s, above 0 where a task uses the link
  std::vector<Task> tasks;
  std::vector<Edge> edges;
  // Links from this one to the one before `incast_end` have, with the worth of k senders on them, the k'th of
  // `efficiencies`, or the last, of their capacity; in between, what lies in between. They are no task's first link. A
  // task is worth one sender by the number of those that share its first link: a device that sends to four at once
  // cannot flood any of them. Or each first link that tasks come from is a whole sender, however many
  // share it.
  int32_t incast_begin = 0;
  int32_t incast_end = 0;
  std::vector<double> efficiencies;
  bool whole_senders = false;

  bool has_incast(int32_t link) const { return link >= incast_begin && link < incast_end && !efficiencies.empty(); }
  double efficiency(double senders) const {
    if (senders <= 1) return 1;
    const auto whole = static_cast<size_t>(senders);
    if (whole >= efficiencies.size()) return efficiencies.back();
    const double part = senders - static_cast<double>(whole);
    return efficiencies[whole - 1] * (1 - part) + efficiencies[whole] * part;
  }
};

}  // namespace fastjax::simulator

#endif  // FASTJAX_SIMULATOR_PROGRAM_H_
