// Checks the kernels of indexed exchanges, on any driver.
#ifndef FASTJAX_TESTS_CPP_KERNELS_INDEXED_KERNELS_H_
#define FASTJAX_TESTS_CPP_KERNELS_INDEXED_KERNELS_H_

#include "support/gpu_driver/device.h"

namespace fastjax::test {

// Rows of any size, at any address, by any indices: what they gather and sum is what plain loops make of it.
void TestIndexedKernels(const gpu_support::Device& device, int trials);

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_KERNELS_INDEXED_KERNELS_H_
