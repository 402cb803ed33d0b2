#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/device/driver_library.h"
#include "kernels/emulated_gpu.h"
#include "python/parts.h"

namespace nb = nanobind;

namespace fastjax::python {

void RegisterGpu(nb::module_* module) {
  nb::module_& m = *module;
  m.def(
      "set_gpu_options",
      [](const std::string& platform, std::string library, int32_t multiprocessors,
         std::vector<std::string> message_libraries) {
        gpu::SetOptions(platform, {std::move(library), multiprocessors, std::move(message_libraries)});
      },
      nb::arg("platform"), nb::arg("library"), nb::arg("multiprocessors"), nb::arg("message_libraries"),
      "For 'cuda' or 'rocm': the path of our own library, how many multiprocessors its kernels may take (0: all), "
      "and names or paths of NCCL or RCCL.");
  m.def(
      "gpu_tally",
      [](const std::string& platform) {
        std::string wrong;
        const auto gpu = gpu::OpenGpu(platform, &wrong);
        if (gpu == nullptr) throw std::runtime_error(wrong);
        const gpu::Tally tally = gpu->tally();
        nb::dict dict;
        dict["exchanges"] = tally.exchanges;
        dict["kernels"] = tally.kernels;
        dict["messages"] = tally.messages;
        dict["packed"] = tally.packed;
        dict["sent"] = tally.sent;
        dict["copied"] = tally.copied;
        dict["unpacked"] = tally.unpacked;
        dict["summed"] = tally.summed;
        return dict;
      },
      nb::arg("platform"),
      "What exchanges have put on the streams of 'cuda' or 'rocm', or of the emulated GPUs of 'cpu', so far: "
      "launches of kernels, messages, and bytes that were packed, sent, copied straight, unpacked and summed.");
  m.def(
      "set_emulated_faults",
      [](int pinned, int lost) {
        kernels::emulatedFaults().pinned = pinned;
        kernels::emulatedFaults().lost = lost;
      },
      nb::arg("pinned") = -1, nb::arg("lost") = -1,
      "For tests: from now on this emulated GPU gets no more pinned memory, and that one takes no more work.");
}

}  // namespace fastjax::python
