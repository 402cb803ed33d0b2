# Defines fastjax_ucx, an interface library with UCX's headers. Nothing links against UCX: it is loaded at run time.

set(ucx_include_dir "${FASTJAX_UCX_INCLUDE_DIR}")
if(NOT ucx_include_dir)
  if(NOT Python_EXECUTABLE)
    find_package(Python 3.11 COMPONENTS Interpreter)
  endif()
  # find_spec finds the package without importing it.
  execute_process(
    COMMAND
      "${Python_EXECUTABLE}" -c
      "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('libucx').origin).parent / 'include')"
    OUTPUT_VARIABLE ucx_include_dir
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
  )
endif()

if(NOT EXISTS "${ucx_include_dir}/ucp/api/ucp.h")
  message(
    FATAL_ERROR
    "No UCX headers: ${ucx_include_dir}/ucp/api/ucp.h does not exist. Install the libucx-cu12 that pyproject.toml pins "
    "under build-system into ${Python_EXECUTABLE}'s environment, or set FASTJAX_UCX_INCLUDE_DIR to the include folder "
    "of a UCX. Without a network between processes, fastjax can be built without them: FASTJAX_UCX=OFF."
  )
endif()

add_library(fastjax_ucx INTERFACE)
target_include_directories(fastjax_ucx SYSTEM INTERFACE "${ucx_include_dir}")
