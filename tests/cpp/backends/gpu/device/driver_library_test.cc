// GPU libraries that are loaded, or refused.
#include "backends/gpu/device/driver_library.h"

#include <string>

#include "kernels/driver.h"
#include "support/check.h"

namespace fastjax::test {
namespace {

using gpu::PlatformOptions;

TEST(Refusals) {
  std::string wrong;
  CHECK(gpu::LoadDriver("libno_gpu_library.so", &wrong) == nullptr);
  CHECK_CONTAINS(wrong, "cannot load fastjax's GPU library: libno_gpu_library.so");
  CHECK(gpu::LoadDriver("libm.so.6", &wrong) == nullptr);
  CHECK_EQ(wrong, "libm.so.6 is not a GPU library of fastjax's: it has no fastjax_gpu_driver");
  CHECK(gpu::LoadDriver(FASTJAX_OTHER_DRIVER, &wrong) == nullptr);
  CHECK_EQ(wrong, std::string(FASTJAX_OTHER_DRIVER) + " is of another fastjax: its driver has version " +
                      std::to_string(kernels::kDriverVersion + 1) + ", wanted " +
                      std::to_string(kernels::kDriverVersion) + ". Install fastjax anew");
}

// Every platform has options of its own. Its GPUs are opened once; a refusal is not remembered.
TEST(Platforms) {
  PlatformOptions options;
  options.library = "libm.so.6";
  options.multiprocessors = 3;
  options.message_libraries = {"libnccl.so.2"};
  gpu::SetOptions("cuda", options);
  CHECK_EQ(gpu::OptionsOf("cuda").library, "libm.so.6");
  CHECK_EQ(gpu::OptionsOf("cuda").multiprocessors, 3);
  CHECK(gpu::OptionsOf("cuda").message_libraries == options.message_libraries);
  CHECK_EQ(gpu::OptionsOf("rocm").library, "");
  std::string wrong;
  CHECK(gpu::OpenGpu("cuda", &wrong) == nullptr);
  CHECK_CONTAINS(wrong, "libm.so.6 is not a GPU library");
  options.library = "libno_gpu_library.so";
  gpu::SetOptions("cuda", options);
  CHECK(gpu::OpenGpu("cuda", &wrong) == nullptr);
  CHECK_CONTAINS(wrong, "cannot load fastjax's GPU library");
  const auto emulated = gpu::OpenGpu("cpu", &wrong);
  CHECK(emulated != nullptr);
  CHECK(gpu::OpenGpu("cpu", &wrong) == emulated);
}

}  // namespace
}  // namespace fastjax::test
