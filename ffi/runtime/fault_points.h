// Declares places where a test can have this process stop. What the test then does to the process happens there and
// nowhere else.
//
// FASTJAX_FAULT names them, each with the launch of this process (rendezvous/rendezvous.h), from 0: with
// "met@1,stage 2@3" the process stops once all have met for its second launch, and in its fourth launch before it sends
// anything of stage 2, as errors number stages. "stage 2@*" is in whichever launch comes there first. The test lets the
// process go on (SIGCONT). Without the variable nothing ever stops. For tests only.
#ifndef FASTJAX_RUNTIME_FAULT_POINTS_H_
#define FASTJAX_RUNTIME_FAULT_POINTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "planner/transfer.h"

namespace fastjax {

class FaultPoints {
 public:
  // `stop` is called at each place of `wanted` that is reached, once. Unknown places are never reached.
  FaultPoints(std::string_view wanted, void (*stop)());
  FaultPoints(const FaultPoints&) = delete;
  FaultPoints& operator=(const FaultPoints&) = delete;

  // Returns the places that the environment named when this was first called. They stop the process.
  static FaultPoints& Get();

  // Places are "meet": before the other processes are told that this one has come; "met": all processes have come, and
  // nothing is planned yet; "end": all of this process's rows have moved, and its program has not gone on.
  void At(int64_t launch, std::string_view place) {
    if (!points_.empty()) Reach(launch, place);
  }
  // "balance", "stage N", "redistribution": before the first send or copy of that phase or stage.
  void AtStep(int64_t launch, planner::Phase phase, int32_t stage) {
    if (!points_.empty()) ReachStep(launch, phase, stage);
  }

 private:
  struct Point {
    Point(std::string_view name, int64_t of) : place(name), launch(of) {}

    std::string place;
    int64_t launch;  // or kAny
    std::atomic<bool> reached{false};
  };

  static constexpr int64_t kAny = -1;

  void Reach(int64_t launch, std::string_view place);
  void ReachStep(int64_t launch, planner::Phase phase, int32_t stage);

  std::vector<std::unique_ptr<Point>> points_;
  void (*stop_)();
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_FAULT_POINTS_H_
