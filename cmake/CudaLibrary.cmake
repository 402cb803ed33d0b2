# Builds libfastjax_cuda.so, the GPU driver for CUDA. It needs nothing of CUDA but, where it runs, the driver of the
# machine, which is loaded when it is first called: the run-time library is linked into it.

include(GpuLibrary)

set(
  FASTJAX_CUDA
  "AUTO"
  CACHE STRING
  "AUTO: if an nvcc is found that works; ON; OFF; WHEELS: by the nvcc of PyPI's wheels"
)
set_property(
  CACHE FASTJAX_CUDA
  PROPERTY STRINGS AUTO ON OFF WHEELS
)
set(
  FASTJAX_CUDA_ARCHITECTURES
  "80;90;100"
  CACHE STRING
  "What to compile for; those that the nvcc does not know are left out"
)
set(
  FASTJAX_CUDA_COMPILER
  ""
  CACHE FILEPATH
  "The nvcc to use; empty: CUDACXX, that of CUDA_PATH or CUDA_HOME, or that on PATH"
)

# Without an nvcc, `nvcc` becomes empty.
function(fastjax_find_nvcc)
  if(FASTJAX_CUDA_COMPILER)
    set(nvcc "${FASTJAX_CUDA_COMPILER}" PARENT_SCOPE)
    return()
  endif()
  set(places "$ENV{CUDA_PATH}/bin" "$ENV{CUDA_HOME}/bin")
  if(DEFINED ENV{CUDACXX})
    find_program(found NAMES "$ENV{CUDACXX}" NO_CACHE)
  endif()
  find_program(found NAMES nvcc PATHS ${places} NO_CACHE NO_DEFAULT_PATH)
  find_program(found NAMES nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin NO_CACHE)
  set(nvcc "${found}" PARENT_SCOPE)
endfunction()

# The nvcc of the wheels nvidia-cuda-nvcc and so on in the environment of Python. They have one folder for all releases
# of a major version.
function(fastjax_find_nvcc_wheels)
  if(NOT Python_EXECUTABLE)
    find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
    set(Python_EXECUTABLE "${Python_EXECUTABLE}" PARENT_SCOPE)
  endif()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import nvidia; print(*nvidia.__path__, sep=';')"
    OUTPUT_VARIABLE folders
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
  )
  list(TRANSFORM folders APPEND "/cu13/bin")
  find_program(found NAMES nvcc PATHS ${folders} NO_CACHE NO_DEFAULT_PATH)
  set(nvcc "${found}" PARENT_SCOPE)
endfunction()

# Which of FASTJAX_CUDA_ARCHITECTURES the nvcc knows, as its options: code for each, and for newer GPUs the newest one's
# PTX, which the driver compiles when it loads it.
function(fastjax_cuda_architectures nvcc)
  execute_process(COMMAND "${nvcc}" --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET TIMEOUT 60)
  set(options)
  set(names)
  foreach(architecture IN LISTS FASTJAX_CUDA_ARCHITECTURES)
    if(known MATCHES "compute_${architecture}[\r\n]")
      list(APPEND options "-gencode=arch=compute_${architecture},code=sm_${architecture}")
      list(APPEND names "sm_${architecture}")
      set(newest "${architecture}")
    endif()
  endforeach()
  if(options)
    list(APPEND options "-gencode=arch=compute_${newest},code=compute_${newest}")
    list(APPEND names "PTX ${newest}")
  endif()
  list(JOIN names ", " names)
  set(architectures "${options}" PARENT_SCOPE)
  set(architecture_names "${names}" PARENT_SCOPE)
endfunction()

function(fastjax_add_cuda_library)
  set(what "library for CUDA (FASTJAX_CUDA=${FASTJAX_CUDA})")
  if(FASTJAX_CUDA STREQUAL "WHEELS")
    fastjax_find_nvcc_wheels()
    set(
      missing
      "the environment of ${Python_EXECUTABLE} has no nvidia/cu13/bin/nvcc. Install pyproject.toml's \
dependency group cuda-compiler into it (pip install --group cuda-compiler), or build with FASTJAX_CUDA=AUTO or ON \
and an nvcc on PATH."
    )
  else()
    fastjax_find_nvcc()
    set(
      missing
      "no nvcc was found. Put a CUDA toolkit's bin/ on PATH, or set CUDA_PATH, CUDACXX or FASTJAX_CUDA_COMPILER, \
or build with FASTJAX_CUDA=WHEELS, by the compiler of PyPI's wheels."
    )
  endif()
  if(NOT nvcc)
    fastjax_no_gpu_library("${FASTJAX_CUDA}" "${what}" "${missing}")
    return()
  endif()

  fastjax_cuda_architectures("${nvcc}")
  if(NOT architectures)
    fastjax_no_gpu_library(
      "${FASTJAX_CUDA}"
      "${what}"
      "${nvcc} does not work, or compiles for none of FASTJAX_CUDA_ARCHITECTURES=${FASTJAX_CUDA_ARCHITECTURES}: \
--list-gpu-arch does not list them."
    )
    return()
  endif()

  # The host's half is compiled by the compiler that compiles the rest.
  set(
    command
    "${nvcc}"
    -ccbin
    "${CMAKE_CXX_COMPILER}"
    -x
    cu
    ${architectures}
    --cudart=static
    # Products are rounded before they are added, as on CPUs.
    -fmad=false
  )
  list(APPEND command -Xcompiler=-fPIC "-Xlinker=--version-script=${FASTJAX_GPU_EXPORTS}")
  if(FASTJAX_CUDA STREQUAL "WHEELS")
    # Where wheels have the run-time library; their nvcc looks in lib64.
    get_filename_component(home "${nvcc}" DIRECTORY)
    get_filename_component(home "${home}" DIRECTORY)
    list(APPEND command "-L${home}/lib")
  endif()
  fastjax_try_gpu_compiler(
    works
    log
    "#include <cuda_runtime.h>\n__global__ void k(int* x) { *x = 1; }\nint main() { k<<<1, 1>>>(nullptr); }\n"
    ${command}
    -shared
    SOURCE
    -o
    OUTPUT
  )
  if(NOT works)
    fastjax_no_gpu_library("${FASTJAX_CUDA}" "${what}" "this failed: ${log}")
    return()
  endif()

  if(FASTJAX_WERROR)
    list(APPEND command -Werror=all-warnings)
  endif()
  list(APPEND command -Xcompiler=-Wall,-Wextra -Xlinker=-soname,libfastjax_cuda.so)
  fastjax_add_gpu_library(fastjax_cuda ${command})
  message(STATUS "fastjax: library for CUDA by ${nvcc}: ${architecture_names}")
endfunction()

if(NOT FASTJAX_CUDA MATCHES "^(AUTO|ON|OFF|WHEELS)$")
  message(FATAL_ERROR "FASTJAX_CUDA is ${FASTJAX_CUDA}; it may be AUTO, ON, OFF or WHEELS.")
endif()
if(NOT FASTJAX_CUDA STREQUAL "OFF")
  fastjax_add_cuda_library()
endif()
