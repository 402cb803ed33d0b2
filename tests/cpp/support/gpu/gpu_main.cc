// The main function of tests on the emulated GPU, which leave no misuse of it behind.
#include "kernels/driver.h"
#include "support/check.h"
#include "support/gpu/gpu_rig.h"

int main(int argc, char** argv) {
  using namespace fastjax::test;  // NOLINT(google-build-using-namespace)
  fastjax_gpu_driver()->SetDevice(0);
  RunTests(argc, argv);
  CheckNoMisuse();
  return Finish(argv[0]);
}
