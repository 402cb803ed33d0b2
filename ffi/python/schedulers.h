// The part of the extension module that says which schedulers there are.
#ifndef FASTJAX_PYTHON_SCHEDULERS_H_
#define FASTJAX_PYTHON_SCHEDULERS_H_

#include <nanobind/nanobind.h>

namespace fastjax::python {

void RegisterSchedulers(nanobind::module_* module);

}  // namespace fastjax::python

#endif  // FASTJAX_PYTHON_SCHEDULERS_H_
