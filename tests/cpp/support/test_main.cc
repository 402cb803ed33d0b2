// The main function of programs that have none.
#include "support/check.h"
#include "support/outcomes.h"

int main(int argc, char** argv) {
  using namespace fastjax::test;  // NOLINT(google-build-using-namespace)
  RunTests(argc, argv);
  CHECK_EQ(RepeatedCompletions().load(), 0);
  return Finish(argv[0]);
}
