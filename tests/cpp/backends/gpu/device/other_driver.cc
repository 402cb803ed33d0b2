// Stands in for the GPU library of another fastjax.
#include "kernels/driver.h"

extern "C" __attribute__((visibility("default"))) const fastjax::kernels::Driver* fastjax_gpu_driver() {
  static fastjax::kernels::Driver driver{};
  driver.version = fastjax::kernels::kDriverVersion + 1;
  return &driver;
}
