// Declares ProcessState, the one place for objects that live as long as the process.
#ifndef FASTJAX_RUNTIME_PROCESS_STATE_H_
#define FASTJAX_RUNTIME_PROCESS_STATE_H_

namespace fastjax {

// Returns the process's object of this type, which is made when it is first asked for. It is never destroyed, since
// threads may outlive static destructors. The type must be thread-safe.
template <typename T>
T& ProcessState() {
  static auto* const state = new T;
  return *state;
}

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_PROCESS_STATE_H_
