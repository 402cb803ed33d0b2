// Allocations of the emulated GPU: in one process, as a handle of another's is opened there.
#include "gpu_allocations.h"

#include <cstddef>
#include <string>

#include "kernels/driver.h"
#include "support/check.h"

namespace {

constexpr size_t kBytes = 4096;
constexpr size_t kOffset = 100;

const fastjax::kernels::Driver& Gpu() { return *fastjax_gpu_driver(); }

std::string Value(const std::string& lines, const std::string& name) {
  const size_t at = ("\n" + lines).find("\n" + name + " ");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return lines.substr(begin, lines.find('\n', begin) - begin);
}

void TestOneThatIsShared() {
  void* memory = nullptr;
  CHECK_EQ(Gpu().SetDevice(0), 0);
  CHECK_EQ(Gpu().Malloc(&memory, kBytes), 0);
  auto* const bytes = static_cast<std::byte*>(memory);
  bytes[kOffset] = std::byte{0x0f};
  bytes[kOffset + 1] = std::byte{0xa1};
  const std::string found = fastjax_find_allocation("", bytes + kOffset);
  CHECK_EQ(Value(found, "bytes"), std::to_string(kBytes));
  CHECK_EQ(Value(found, "offset"), std::to_string(kOffset));
  CHECK_EQ(Value(found, "error"), "");
  CHECK_EQ(std::string(fastjax_read_allocation("", Value(found, "handle").c_str(), kOffset, 2)), "data 0fa1\n");
  CHECK_EQ(Gpu().Free(memory), 0);
}

void TestWhatCannotBeShared() {
  int host = 0;
  const std::string none = fastjax_find_allocation("", &host);
  CHECK(Value(none, "error").find("cannot find its allocation: ") == 0);
  CHECK_EQ(Value(none, "handle"), "");
  CHECK_EQ(std::string(fastjax_read_allocation("", "0x", 0, 1)), "error that is no handle\n");
  const std::string nobodys = fastjax_read_allocation("", std::string(128, '0').c_str(), 0, 1);
  CHECK(Value(nobodys, "error").find("cannot open the allocation: ") == 0);
  const std::string missing = fastjax_find_allocation("/nowhere/library.so", &host);
  CHECK(Value(missing, "error").find("cannot load fastjax's GPU library") == 0);
}

}  // namespace

int main() {
  TestOneThatIsShared();
  TestWhatCannotBeShared();
  return fastjax::test::Finish("gpu_allocations_test");
}
