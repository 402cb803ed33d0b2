// The part of the extension module that is about GPUs.
#ifndef FASTJAX_PYTHON_GPU_H_
#define FASTJAX_PYTHON_GPU_H_

#include <nanobind/nanobind.h>

namespace fastjax::python {

void RegisterGpu(nanobind::module_* module);

}  // namespace fastjax::python

#endif  // FASTJAX_PYTHON_GPU_H_
