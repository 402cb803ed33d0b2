// What a GPU's driver makes of memory that is not ours, as that of a JAX array: a library for programs that have loaded
// JAX, which gpu_check/allocation.py is. Texts are lines of a name and a value; "error" is what failed, if anything
// did. They are the calling thread's, until its next call.
#ifndef FASTJAX_BENCHMARKS_CPP_GPU_ALLOCATIONS_H_
#define FASTJAX_BENCHMARKS_CPP_GPU_ALLOCATIONS_H_

#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

// Of the allocation of device 0 that `address` is in: its bytes, where in it `address` is, and what other processes
// open it by. `library` is that of the driver; empty: the emulated GPU.
const char* fastjax_find_allocation(const char* library, const void* address);

// What another process exported: so many bytes from there, in hexadecimal digits.
const char* fastjax_read_allocation(const char* library, const char* handle, uint64_t offset, uint64_t bytes);

}  // extern "C"
#pragma GCC visibility pop

#endif  // FASTJAX_BENCHMARKS_CPP_GPU_ALLOCATIONS_H_
