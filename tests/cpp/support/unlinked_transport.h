// A transport that goes nowhere: what a test's own need not say.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_UNLINKED_TRANSPORT_H_
#define FASTJAX_TESTS_CPP_SUPPORT_UNLINKED_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/transport.h"

namespace fastjax::test {

// `Base` is Transport, or an interface that is one.
template <typename Base = Transport>
class UnlinkedTransport : public Base {
 public:
  UnlinkedTransport(int32_t process, int32_t processes) : process_(process), processes_(processes) {}

  int32_t process() const override { return process_; }
  int32_t processes() const override { return processes_; }
  void SetHandler(Handler*) override {}
  bool Post(std::function<void()>) override { return false; }
  uint64_t KeyedHash(const void*, size_t) const override { return 0; }
  std::string Describe(int32_t process) const override { return "process " + std::to_string(process); }
  void SendMessage(int32_t, const void*, size_t) override {}
  void Send(const RowMessage&) override {}
  void Receive(const RowMessage&) override {}
  void Cancel(Listener*) override {}
  void Disconnect(int32_t) override {}
  void Probe(int32_t) override {}
  bool Silent(int32_t) const override { return false; }
  void Drop(uint64_t, uint64_t) override {}

 private:
  const int32_t process_;
  const int32_t processes_;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_UNLINKED_TRANSPORT_H_
