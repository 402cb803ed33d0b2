// Declares ProcessState, the one place for objects that live as long as the process.
#ifndef FASTJAX_RUNTIME_PROCESS_STATE_H_
#define FASTJAX_RUNTIME_PROCESS_STATE_H_

namespace fastjax {

// The process's object of this type, made when it is first asked for. It is never destroyed: threads may outlive static
// destructors. Whatever is in it must guard itself against concurrent use.
template <typename T>
T& ProcessState() {
  static auto* const state = new T;
  return *state;
}

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_PROCESS_STATE_H_
