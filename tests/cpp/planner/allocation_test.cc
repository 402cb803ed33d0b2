// A planner that has seen its traffic once plans without allocating.
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "planner/planner.h"
#include "planner/table.h"
#include "support/check.h"
#include "support/traffic.h"

namespace {
long g_allocations = 0;
}  // namespace

void* operator new(std::size_t size) {
  ++g_allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace fastjax::test {
namespace {

void TestWarm(planner::Scheduler scheduler) {
  const planner::Topology topology = MakeTopology(4, 4);
  planner::Planner plan(topology, scheduler, 1 << 20);
  std::vector<int32_t> words(planner::TableWords(topology, scheduler));
  const std::vector<Case> cases = MakeCases(topology, 1);
  for (const bool warm : {false, true}) {
    const long before = g_allocations;
    bool written = true;
    for (const Case& test_case : cases) {
      plan.Plan(test_case.traffic.data());
      for (int32_t device = 0; device < topology.devices(); ++device) {
        written = WriteTable(&plan, device, words.data()) && written;
      }
    }
    const long allocations = g_allocations - before;
    CHECK(written);
    if (warm) CHECK_EQ(allocations, 0);
  }
}

}  // namespace
}  // namespace fastjax::test

int main() {
  const auto schedulers = static_cast<int32_t>(fastjax::planner::SchedulerNames().size());
  for (int32_t i = 0; i < schedulers; ++i) fastjax::test::TestWarm(static_cast<fastjax::planner::Scheduler>(i));
  return fastjax::test::Finish("allocation_test");
}
