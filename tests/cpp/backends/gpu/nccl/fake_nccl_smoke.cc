// The fake NCCL that nccl_smoke loads: a rank may send to itself, and messages may be empty.
#include "support/gpu/fake_nccl.h"

extern "C" fastjax::test::FakeNccl* fastjax_fake_nccl();

namespace {

__attribute__((constructor)) void Permit() {
  fastjax::test::FakeNccl& fake = *fastjax_fake_nccl();
  fake.late = 0;
  fake.asking = 0;
  fake.to_self = true;
}

}  // namespace
