# One rank of NCCL. The loader of NCCL is compiled here again, as that of the driver is in support/gpu_driver: the
# program is built within seconds on a machine with a GPU, and run there with the real one.
set(
  FASTJAX_NCCL_INCLUDE_DIRS
  ""
  CACHE STRING
  "Folders of nccl.h and cuda_runtime.h, to hold our declarations against; empty: not done"
)

add_executable(nccl_smoke nccl_smoke.cc ${PROJECT_SOURCE_DIR}/ffi/backends/gpu/nccl/library.cc)
target_link_libraries(nccl_smoke PRIVATE fastjax_gpu_support fastjax_kernels fastjax_options ${CMAKE_DL_LIBS})
set_target_properties(nccl_smoke PROPERTIES ENABLE_EXPORTS ON) # the fake uses its emulated GPU

if(FASTJAX_NCCL_INCLUDE_DIRS)
  add_library(nccl_header_check OBJECT nccl_header_check.cc)
  target_include_directories(nccl_header_check SYSTEM PRIVATE ${FASTJAX_NCCL_INCLUDE_DIRS})
  target_link_libraries(nccl_header_check PRIVATE fastjax_options)
  add_dependencies(nccl_smoke nccl_header_check)
endif()

add_library(fastjax_fake_nccl_smoke MODULE fake_nccl_smoke.cc ${PROJECT_SOURCE_DIR}/tests/cpp/support/gpu/fake_nccl.cc)
target_link_libraries(fastjax_fake_nccl_smoke PRIVATE fastjax_options)

add_test(NAME nccl_smoke COMMAND nccl_smoke)
set_tests_properties(nccl_smoke PROPERTIES ENVIRONMENT "FASTJAX_NCCL_LIBRARY=$<TARGET_FILE:fastjax_fake_nccl_smoke>")
