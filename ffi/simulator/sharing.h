// Max-min fair rates.
#ifndef FASTJAX_SIMULATOR_SHARING_H_
#define FASTJAX_SIMULATOR_SHARING_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "simulator/program.h"

namespace fastjax::simulator {

// Shares links among tasks: nobody's rate can be raised without lowering that of somebody who has no more. Found by
// progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): of all links, the one that can give its tasks
// least settles their rates, then the next.
class Sharing {
 public:
  // `program` must stay.
  explicit Sharing(const Program& program);

  // Sets rates[i], bytes/s, of each of `tasks`, which are all that use their links.
  void Share(const std::vector<int32_t>& tasks, std::vector<double>* rates);

 private:
  using Offer = std::pair<double, int32_t>;  // bytes/s that a link can give each of its tasks at least, and its slot

  void NumberLinks(const std::vector<int32_t>& tasks);
  void ListTasksOfLinks();
  void FindCapacities();
  double Senders(int32_t slot);
  void Fill(int8_t priority, std::vector<double>* rates);
  void Settle(int32_t slot, double share, int8_t priority, std::vector<double>* rates);
  const Task& task(int32_t number) const { return program_->tasks[number]; }

  const Program* program_;
  std::vector<int32_t> slot_of_;  // of each link, or -1
  std::vector<int32_t> links_;    // by slot, as are:
  std::vector<double> left_;      // bytes/s
  std::vector<int32_t> open_;     // tasks without a rate yet
  std::vector<int32_t> first_;    // where the slot's tasks begin in `listed_`
  std::vector<int32_t> listed_;   // positions in the list of tasks
  std::vector<int32_t> sent_to_;  // the slot that a first link was last found to send to
  std::vector<int8_t> waiting_;   // by position: the priority of a task without a rate yet
  std::vector<std::array<int32_t, 3>> slots_;
  LeastFirst<Offer> offers_;
};

}  // namespace fastjax::simulator

#endif  // FASTJAX_SIMULATOR_SHARING_H_
