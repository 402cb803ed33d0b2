#include "python/gpu.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "transport/gpu/driver_library.h"

namespace nb = nanobind;

namespace fastjax::python {

void RegisterGpu(nb::module_* module) {
  nb::module_& m = *module;
  m.def(
      "set_gpu_options",
      [](const std::string& platform, std::string library, int32_t multiprocessors,
         std::vector<std::string> message_libraries, bool shares_memory) {
        transport::gpu::SetOptions(platform,
                                   {std::move(library), multiprocessors, std::move(message_libraries), shares_memory});
      },
      nb::arg("platform"), nb::arg("library"), nb::arg("multiprocessors"), nb::arg("message_libraries"),
      nb::arg("shares_memory") = false,
      "For 'cuda' or 'rocm': the path of our own library, how many multiprocessors its kernels may take (0: all), "
      "names or paths of NCCL or RCCL, and whether processes of a host share memory of their devices.");
}

}  // namespace fastjax::python
