// The main function of tests of transports that have none: they need UCX.
#include <iostream>

#include "support/check.h"
#include "transport_rig.h"

int main(int argc, char** argv) {
  using namespace fastjax::test;  // NOLINT(google-build-using-namespace)
  if (UcxLibrary().empty()) {
    std::cout << argv[0] << ": SKIPPED, there is no UCX beside the headers it was built with\n";
    return 77;
  }
  RunTests(argc, argv);
  return Finish(argv[0]);
}
