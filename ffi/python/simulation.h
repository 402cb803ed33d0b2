// The part of the extension module that simulates plans.
#ifndef FASTJAX_PYTHON_SIMULATION_H_
#define FASTJAX_PYTHON_SIMULATION_H_

#include <nanobind/nanobind.h>

namespace fastjax::python {

void RegisterSimulation(nanobind::module_* module);

}  // namespace fastjax::python

#endif  // FASTJAX_PYTHON_SIMULATION_H_
