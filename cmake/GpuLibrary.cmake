# What building for CUDA and for ROCm have in common. A library is made by one command of the vendor's compiler, and not
# with CMake's languages CUDA and HIP: those end the configuration at a compiler that does not work, cannot use the
# compilers of PyPI's wheels (which have no lib64/ to be identified with) and, for HIP, need parts of a ROCm that a
# compiler alone lacks. With commands, what is compiled is also what was tried, and options meant for C++, such as
# sanitizers, stay away from it.

set(FASTJAX_GPU_SOURCE "${PROJECT_SOURCE_DIR}/ffi/kernels/gpu.cc")

# What a library shows: not the names of the vendor's run-time library that is linked into it, of which JAX has one of
# its own, nor those that compilers add.
set(FASTJAX_GPU_EXPORTS "${PROJECT_BINARY_DIR}/gpu/exports.map")
file(WRITE "${FASTJAX_GPU_EXPORTS}" "{ global: fastjax_gpu_driver; local: *; };\n")

# Runs a compiler on a small program: fastjax_try_gpu_compiler(RESULT LOG SOURCE-TEXT COMMAND...). In the command,
# SOURCE and OUTPUT stand for files. An attempt that has succeeded is not made again by the next configuration.
function(fastjax_try_gpu_compiler result log text)
  string(SHA256 key "${text};${ARGN}")
  set(folder "${PROJECT_BINARY_DIR}/gpu_attempts/${key}")
  set(${result} TRUE PARENT_SCOPE)
  if(EXISTS "${folder}/passed")
    return()
  endif()
  file(WRITE "${folder}/attempt.cc" "${text}")
  set(command ${ARGN})
  list(TRANSFORM command REPLACE "^SOURCE$" "${folder}/attempt.cc")
  list(TRANSFORM command REPLACE "^OUTPUT$" "${folder}/attempt.out")
  execute_process(COMMAND ${command} RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said TIMEOUT 120)
  if(failed STREQUAL "0" AND EXISTS "${folder}/attempt.out")
    file(TOUCH "${folder}/passed")
    return()
  endif()
  list(JOIN command " " line)
  set(${result} FALSE PARENT_SCOPE)
  set(${log} "${line}\n${said} (${failed})" PARENT_SCOPE)
endfunction()

# Why there will be no library: an error if it was asked for, else a word.
function(fastjax_no_gpu_library setting what why)
  if(setting STREQUAL "AUTO")
    # The first lines: a compiler that fails can say much.
    string(SUBSTRING "${why}" 0 1000 why)
    message(STATUS "fastjax: no ${what}: ${why}")
  else()
    message(FATAL_ERROR "${what} was asked for, but ${why}")
  endif()
endfunction()

# fastjax_add_gpu_library(NAME COMMAND...): a library that is made by the command from FASTJAX_GPU_SOURCE, and its place
# in the package. To the command are added the source, the output and where the headers that were read are noted.
function(fastjax_add_gpu_library name)
  set(library "${PROJECT_BINARY_DIR}/gpu/lib${name}.so")
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/gpu")
  add_custom_command(
    OUTPUT "${library}"
    COMMAND
      ${ARGN} -std=c++17 -O2 "-I${PROJECT_SOURCE_DIR}/ffi" -MD -MF "${library}.d" -MT "${library}" -shared
      "${FASTJAX_GPU_SOURCE}" -o "${library}"
    DEPENDS "${FASTJAX_GPU_SOURCE}"
    DEPFILE "${library}.d"
    COMMENT "Building lib${name}.so"
    VERBATIM
  )
  add_custom_target(${name} ALL DEPENDS "${library}")
  install(PROGRAMS "${library}" DESTINATION fastjax)
endfunction()
