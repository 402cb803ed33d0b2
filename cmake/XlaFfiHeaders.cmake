# Defines fastjax_xla_ffi, an interface library with the XLA FFI headers, and refuses headers newer than the floor.

# Where the floor's jaxlib is not to be had, and fastjax is built in the environment that it will run in, that
# environment's headers are right: what they are too new for is an older jaxlib, and there is none. A wheel built so
# must not go elsewhere.
option(
  FASTJAX_ANY_FFI_HEADERS
  "Take headers of any version: for a build that only runs with the jaxlib they are of"
  OFF
)

set(FASTJAX_FFI_API_MAJOR 0)
set(FASTJAX_FFI_API_MINOR 3)

set(xla_include_dir "${FASTJAX_XLA_INCLUDE_DIR}")
if(NOT xla_include_dir)
  # find_spec finds the package without importing it.
  execute_process(
    COMMAND
      "${Python_EXECUTABLE}" -c
      "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('jaxlib').origin).parent / 'include')"
    OUTPUT_VARIABLE xla_include_dir
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
  )
endif()

set(xla_c_api "${xla_include_dir}/xla/ffi/api/c_api.h")
if(NOT EXISTS "${xla_c_api}")
  message(
    FATAL_ERROR
    "No XLA FFI headers: ${xla_c_api} does not exist. Install the jaxlib that pyproject.toml pins under build-system "
    "into ${Python_EXECUTABLE}'s environment, or set FASTJAX_XLA_INCLUDE_DIR to its include folder."
  )
endif()

file(STRINGS "${xla_c_api}" api_lines REGEX "^#define XLA_FFI_API_M(AJOR|INOR) [0-9]+")
string(REGEX REPLACE ".*XLA_FFI_API_MAJOR ([0-9]+).*" "\\1" api_major "${api_lines}")
string(REGEX REPLACE ".*XLA_FFI_API_MINOR ([0-9]+).*" "\\1" api_minor "${api_lines}")
if(
  NOT FASTJAX_ANY_FFI_HEADERS
  AND NOT "${api_major}.${api_minor}" STREQUAL "${FASTJAX_FFI_API_MAJOR}.${FASTJAX_FFI_API_MINOR}"
)
  message(
    FATAL_ERROR
    "${xla_include_dir} has XLA FFI headers of version ${api_major}.${api_minor}; fastjax is built with "
    "${FASTJAX_FFI_API_MAJOR}.${FASTJAX_FFI_API_MINOR}, those of the oldest jaxlib that it supports. Newer headers "
    "would make that jaxlib refuse to start. For a build that will only run with the jaxlib of these headers, say "
    "FASTJAX_ANY_FFI_HEADERS=ON."
  )
endif()

add_library(fastjax_xla_ffi INTERFACE)
target_include_directories(fastjax_xla_ffi SYSTEM INTERFACE "${xla_include_dir}")
# When pedantic, gcc rejects c_api.h (a member named like its type) even as a system header. Targets list this library
# after fastjax_options, so that the last flag wins.
target_compile_options(fastjax_xla_ffi INTERFACE -Wno-pedantic)
