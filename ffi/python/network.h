// The network between processes, as fastjax's bootstrap opens it.
#ifndef FASTJAX_PYTHON_NETWORK_H_
#define FASTJAX_PYTHON_NETWORK_H_

#include <nanobind/nanobind.h>

namespace fastjax::python {

void RegisterNetwork(nanobind::module_* module);

}  // namespace fastjax::python

#endif  // FASTJAX_PYTHON_NETWORK_H_
