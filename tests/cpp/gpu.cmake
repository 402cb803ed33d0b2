# Tests of the GPU transport on the emulated GPU.
add_library(fastjax_gpu_test_support STATIC arena.cc gpu_rig.cc)
target_link_libraries(
  fastjax_gpu_test_support
  PUBLIC fastjax_backends_test_support fastjax_emulated_gpu
  PRIVATE fastjax_options
)

foreach(name IN ITEMS gpu_exchange_test gpu_fetch_test)
  add_executable(${name} ${name}.cc)
  target_link_libraries(${name} PRIVATE fastjax_gpu_test_support fastjax_options)
  add_test(NAME ${name} COMMAND ${name})
endforeach()

add_executable(gpu_driver_test gpu_driver_test.cc)
target_link_libraries(gpu_driver_test PRIVATE fastjax_gpu_support fastjax_kernels fastjax_options)
add_test(NAME gpu_driver_test COMMAND gpu_driver_test)
add_test(NAME gpu_driver_test_small COMMAND gpu_driver_test --small)

# Libraries that tests load as NCCL: they use the emulated GPU of whoever loads them.
foreach(name IN ITEMS fastjax_fake_nccl fastjax_fake_nccl_copy fastjax_fake_nccl_without_abort)
  add_library(${name} MODULE fake_nccl.cc)
  target_link_libraries(${name} PRIVATE fastjax_options)
endforeach()
target_compile_definitions(fastjax_fake_nccl_without_abort PRIVATE FASTJAX_FAKE_NCCL_WITHOUT_ABORT)

add_library(fastjax_nccl_test_support STATIC ipc_rig.cc nccl_rig.cc)
target_link_libraries(
  fastjax_nccl_test_support
  PUBLIC fastjax_gpu_test_support
  PRIVATE fastjax_options ${CMAKE_DL_LIBS}
)
add_dependencies(fastjax_nccl_test_support fastjax_fake_nccl fastjax_fake_nccl_copy fastjax_fake_nccl_without_abort)
target_compile_definitions(
  fastjax_nccl_test_support
  PUBLIC
    "FASTJAX_FAKE_NCCL=\"$<TARGET_FILE:fastjax_fake_nccl>\""
    "FASTJAX_FAKE_NCCL_COPY=\"$<TARGET_FILE:fastjax_fake_nccl_copy>\""
    "FASTJAX_FAKE_NCCL_WITHOUT_ABORT=\"$<TARGET_FILE:fastjax_fake_nccl_without_abort>\""
)

foreach(
  name
  IN
  ITEMS gpu_ipc_faults_test gpu_ipc_test gpu_network_test nccl_faults_test nccl_poll_test nccl_test
)
  add_executable(${name} ${name}.cc)
  target_link_libraries(${name} PRIVATE fastjax_nccl_test_support fastjax_options)
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  add_test(NAME ${name} COMMAND ${name})
endforeach()

include(nccl_smoke.cmake)
