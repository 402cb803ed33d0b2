// Declares Reused, which keeps objects to be used again.
#ifndef FASTJAX_RUNTIME_REUSED_H_
#define FASTJAX_RUNTIME_REUSED_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace fastjax {

// Owns as many objects as were ever in use at once, each as its last user left it: one that has grown need not grow
// again. Thread-safe.
template <typename T>
class Reused {
 public:
  // Returns the object that was given back last, or makes one of these arguments.
  template <typename... Arguments>
  T* Take(Arguments&&... arguments) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      free_.reserve(all_.size() + 1);  // giving one back must not want memory: others may wait for what comes after it
      return all_.emplace_back(std::make_unique<T>(std::forward<Arguments>(arguments)...)).get();
    }
    T* const taken = free_.back();
    free_.pop_back();
    return taken;
  }
  void Return(T* object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(object);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> all_;
  std::vector<T*> free_;
};

}  // namespace fastjax

#endif  // FASTJAX_RUNTIME_REUSED_H_
