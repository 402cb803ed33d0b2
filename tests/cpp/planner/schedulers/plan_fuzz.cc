// Plans whatever problem the bytes describe, and checks the plan: a byte for the scheduler, then what Choices takes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "choices.h"
#include "plan_checks.h"
#include "planner/planner.h"
#include "problem.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fastjax;
  if (size == 0) return 0;
  const auto scheduler = static_cast<planner::Scheduler>(data[0] % planner::SchedulerNames().size());
  test::Choices choices(data + 1, size - 1);
  const test::Problem problem = test::DrawProblem(scheduler, test::kFuzzedDevices, &choices);
  const std::string wrong = test::CheckProblem(problem);
  if (wrong.empty()) return 0;
  std::cerr << wrong << "\n";
  test::Print(problem, &std::cerr);
  std::abort();
}
