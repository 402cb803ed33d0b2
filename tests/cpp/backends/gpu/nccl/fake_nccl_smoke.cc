// The fake NCCL that nccl_smoke loads: a rank may send to itself, and messages may be empty. FASTJAX_FAKE_NCCL_FAULT
// names what is wrong with it.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backends/gpu/nccl/api.h"
#include "support/gpu/fake_nccl.h"

extern "C" fastjax::test::FakeNccl* fastjax_fake_nccl();

namespace {

__attribute__((constructor)) void Spoil() {
  fastjax::test::FakeNccl& fake = *fastjax_fake_nccl();
  fake.late = 0;
  fake.asking = 0;
  fake.to_self = true;
  const char* const named = std::getenv("FASTJAX_FAKE_NCCL_FAULT");
  const std::string fault = named == nullptr ? "" : named;
  if (fault == "bytes") {
    fake.wrong_bytes = true;
  } else if (fault == "overrun") {
    fake.overruns = true;
  } else if (fault == "config") {
    fake.takes_any_config = true;
  } else if (fault == "blocks") {
    fake.always_blocks = true;
  } else if (fault == "alone") {
    fake.ready_alone = true;
  } else if (fault == "init") {
    fake.fail_init = fastjax::gpu::nccl::kSystemError;
  } else if (fault == "state") {
    fake.async_error = fastjax::gpu::nccl::kRemoteError;
  } else if (!fault.empty()) {
    std::fprintf(stderr, "fake NCCL: no fault is called '%s'\n", named);
    std::abort();
  }
}

}  // namespace
