// Declares Completer, which owns the threads that completions run on.
#ifndef FASTJAX_RUNTIME_COMPLETER_H_
#define FASTJAX_RUNTIME_COMPLETER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/process_state.h"

namespace fastjax {

// Runs each task on a thread that no other unfinished task occupies. Completing one device's future runs the rest
// of that device's program on the completing thread, and that program may block in a collective until every other
// device gets there: two completions must therefore never wait for each other. Threads are kept for reuse, so the
// number of them is the largest number of completions that were ever unfinished at once.
class Completer {
 public:
  // The process's completer. Never destroyed: its threads may outlive static destructors.
  static Completer& Get() { return ProcessState<Completer>(); }

  void Run(std::function<void()> task);

 private:
  struct Worker {
    std::condition_variable wake;
    bool called = false;
  };

  bool AddThread();
  void Loop();

  std::mutex mutex_;
  std::deque<std::function<void()>> waiting_;  // a thread has been started for each, unless the system has none left
  int threads_ = 0;
  std::vector<Worker*> idle_;  // most recently used last: its stack is still in the cache
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_COMPLETER_H_
