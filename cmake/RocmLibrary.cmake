# Builds libfastjax_rocm.so, the GPU driver for ROCm. It is linked to the HIP run-time library, which JAX's ROCm plugin
# loads as well.

include(GpuLibrary)

set(FASTJAX_ROCM "AUTO" CACHE STRING "AUTO: if a HIP compiler is found that works; ON; OFF")
set_property(CACHE FASTJAX_ROCM PROPERTY STRINGS AUTO ON OFF)
set(
  FASTJAX_ROCM_ARCHITECTURES
  "gfx90a;gfx942;gfx950"
  CACHE STRING
  "What to compile for; those that the compiler does not know are left out"
)
set(FASTJAX_HIP_COMPILER "" CACHE FILEPATH "The clang or hipcc to use; empty: amdclang++ or hipcc of a ROCm or on PATH")
set(FASTJAX_ROCM_PATH "" CACHE PATH "Folder of the ROCm; empty: ROCM_PATH, /opt/rocm, or as the compiler finds it")

set(rocm_path "${FASTJAX_ROCM_PATH}")
foreach(candidate IN ITEMS "$ENV{ROCM_PATH}" /opt/rocm)
  if(NOT rocm_path AND IS_DIRECTORY "${candidate}")
    set(rocm_path "${candidate}")
  endif()
endforeach()

# Without a compiler, `compiler` becomes empty.
function(fastjax_find_hip_compiler)
  if(FASTJAX_HIP_COMPILER)
    set(compiler "${FASTJAX_HIP_COMPILER}" PARENT_SCOPE)
    return()
  endif()
  if(rocm_path)
    find_program(
      found
      NAMES amdclang++ hipcc
      PATHS "${rocm_path}/bin" "${rocm_path}/lib/llvm/bin" "${rocm_path}/llvm/bin" NO_CACHE
      NO_DEFAULT_PATH
    )
  endif()
  find_program(found NAMES amdclang++ hipcc NO_CACHE)
  set(compiler "${found}" PARENT_SCOPE)
endfunction()

# The HIP run-time library to link with: the ROCm's, or else an empty one of the name that ROCm 7's has, so that the
# loader asks for it. Names that it defines are resolved when ours is loaded.
function(fastjax_find_hip_runtime)
  if(rocm_path)
    find_library(found NAMES amdhip64 PATHS "${rocm_path}/lib" "${rocm_path}/lib64" NO_CACHE NO_DEFAULT_PATH)
  endif()
  if(found)
    set(hip_runtime "${found}" PARENT_SCOPE)
    return()
  endif()
  set(stub "${PROJECT_BINARY_DIR}/gpu/libamdhip64.so")
  file(WRITE "${stub}.cc" "// Stands in for ROCm's library of this name when ours is linked.\n")
  execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" -shared -fPIC -nostdlib -Wl,-soname,libamdhip64.so.7 "${stub}.cc" -o "${stub}"
    COMMAND_ERROR_IS_FATAL ANY
  )
  set(hip_runtime "${stub}" PARENT_SCOPE)
endfunction()

function(fastjax_add_rocm_library)
  set(what "library for ROCm (FASTJAX_ROCM=${FASTJAX_ROCM})")
  fastjax_find_hip_compiler()
  if(NOT compiler)
    fastjax_no_gpu_library(
      "${FASTJAX_ROCM}"
      "${what}"
      "neither amdclang++ nor hipcc was found. Install ROCm's HIP compiler, set ROCM_PATH if it is not in /opt/rocm, \
or set FASTJAX_HIP_COMPILER to a clang++ that compiles for AMD's GPUs."
    )
    return()
  endif()

  # Where there is an nvcc, hipcc would take HIP for CUDA.
  set(
    command
    "${CMAKE_COMMAND}"
    -E
    env
    HIP_PLATFORM=amd
    "${compiler}"
    -x
    hip
  )
  if(rocm_path)
    list(APPEND command "--rocm-path=${rocm_path}")
  endif()
  set(known)
  set(log)
  foreach(architecture IN LISTS FASTJAX_ROCM_ARCHITECTURES)
    fastjax_try_gpu_compiler(
      works
      log
      "#include <hip/hip_runtime.h>\n__global__ void k(int* x) { *x = blockDim.x; }\n"
      ${command}
      --offload-arch=${architecture}
      --offload-device-only
      SOURCE
      -o
      OUTPUT
    )
    if(works)
      list(APPEND known "${architecture}")
    endif()
  endforeach()
  if(NOT known)
    fastjax_no_gpu_library("${FASTJAX_ROCM}" "${what}" "this failed: ${log}")
    return()
  endif()

  fastjax_find_hip_runtime()
  if(FASTJAX_WERROR)
    list(APPEND command -Werror)
  endif()
  list(TRANSFORM known PREPEND "--offload-arch=" OUTPUT_VARIABLE architectures)
  # The code is small, and not being compressed it can be checked with no tool of ROCm's.
  list(
    APPEND command
    ${architectures}
    --no-offload-compress
    # Products are rounded before they are added, as on CPUs.
    -ffp-contract=off
    -Wall
    -Wextra
    -fPIC
    "-Wl,--version-script=${FASTJAX_GPU_EXPORTS}"
  )
  # Clang is not to look for the run-time library itself, which it might not find.
  list(
    APPEND command
    -no-hip-rt
    -Wl,--no-as-needed
    -Xlinker
    "${hip_runtime}"
    -Wl,-soname,libfastjax_rocm.so
  )
  fastjax_add_gpu_library(fastjax_rocm ${command})
  list(JOIN known ", " names)
  message(STATUS "fastjax: library for ROCm by ${compiler}: ${names}")
endfunction()

if(NOT FASTJAX_ROCM MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FASTJAX_ROCM is ${FASTJAX_ROCM}; it may be AUTO, ON or OFF.")
endif()
if(NOT FASTJAX_ROCM STREQUAL "OFF")
  fastjax_add_rocm_library()
endif()
