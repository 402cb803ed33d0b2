// The part of the extension module that says what exchanges did.
#ifndef FASTJAX_PYTHON_STATISTICS_H_
#define FASTJAX_PYTHON_STATISTICS_H_

#include <nanobind/nanobind.h>

namespace fastjax::python {

void RegisterStatistics(nanobind::module_* module);

}  // namespace fastjax::python

#endif  // FASTJAX_PYTHON_STATISTICS_H_
