// The parts of the extension module, each in the file of its name.
#ifndef FASTJAX_PYTHON_REGISTER_H_
#define FASTJAX_PYTHON_REGISTER_H_

#include <nanobind/nanobind.h>

namespace fastjax::python {

void RegisterGpu(nanobind::module_* module);
void RegisterNetwork(nanobind::module_* module);
void RegisterSimulation(nanobind::module_* module);
void RegisterStatistics(nanobind::module_* module);

}  // namespace fastjax::python

#endif  // FASTJAX_PYTHON_REGISTER_H_
