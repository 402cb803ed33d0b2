// Runs the tests of a program that TEST has defined: all of them, or the one that is named.
#include <string>

#include "support/check.h"
#include "support/outcomes.h"

int main(int argc, char** argv) {
  using namespace fastjax::test;  // NOLINT(google-build-using-namespace)
  const std::string only = argc > 1 ? argv[1] : "";
  for (const Test& test : AllTests()) {
    if (!only.empty() && only != test.name) continue;
    const Context context(test.name);
    test.run();
  }
  CHECK_EQ(RepeatedCompletions().load(), 0);
  const std::string program = argv[0];
  return Finish(program.substr(program.rfind('/') + 1).c_str());
}
