// The order of a device's messages, as tasks that wait for each other.
#ifndef FASTJAX_SIMULATOR_SEQUENCE_H_
#define FASTJAX_SIMULATOR_SEQUENCE_H_

#include <cstdint>
#include <vector>

#include "simulator/program.h"

namespace fastjax::simulator {

// Messages of one device, stage by stage: those of each wait for those of the stage that is `window` before it, of the
// stages that the device has.
class Sequence {
 public:
  Sequence(Program* program, int32_t devices, int32_t window);

  // Stages must come in order.
  void Add(int32_t device, int32_t stage, int32_t message);

 private:
  struct Step {
    int32_t stage = -1;
    std::vector<int32_t> gates;  // each is over when one of the last stages is, the oldest first; -1 for none
    std::vector<int32_t> members;
  };

  int32_t Gate(const std::vector<int32_t>& members);

  Program* program_;
  std::vector<Step> of_;
};

}  // namespace fastjax::simulator

#endif  // FASTJAX_SIMULATOR_SEQUENCE_H_
