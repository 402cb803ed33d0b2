# One rank of NCCL. The loader of NCCL is compiled here again, as that of the driver is in support/gpu_driver: the
# program is built within seconds on a machine with a GPU, and run there with the real one.
set(
  FASTJAX_NCCL_INCLUDE_DIRS
  ""
  CACHE STRING
  "Folders of nccl.h and cuda_runtime.h, to hold our declarations against; empty: not done"
)

add_executable(
  nccl_smoke
  nccl_smoke.cc
  ${PROJECT_SOURCE_DIR}/ffi/backends/gpu/nccl/library.cc
  ${PROJECT_SOURCE_DIR}/ffi/backends/gpu/nccl/poll.cc
)
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

# Fails, with status 1, and says what and why.
function(fastjax_smoke_fails name library fault says)
  cmake_parse_arguments(smoke "" LIMIT "" ${ARGN})
  if(NOT smoke_LIMIT)
    set(smoke_LIMIT 120) # so that it is never met
  endif()
  add_test(
    NAME nccl_smoke_${name}
    COMMAND
      ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:nccl_smoke> -DLIMIT=${smoke_LIMIT} "-DSAYS=${says}" -P
      ${CMAKE_CURRENT_SOURCE_DIR}/fails_saying.cmake
  )
  set_tests_properties(
    nccl_smoke_${name}
    PROPERTIES ENVIRONMENT "FASTJAX_NCCL_LIBRARY=${library};FASTJAX_FAKE_NCCL_FAULT=${fault}"
  )
endfunction()

set(fake $<TARGET_FILE:fastjax_fake_nccl_smoke>)
fastjax_smoke_fails(without_library libno_nccl_is_called_that.so "" "load NCCL: cannot load NCCL or RCCL")
fastjax_smoke_fails(bytes ${fake} bytes "send and receive 1 bytes with a communicator that blocks: byte 64 of 129 is")
fastjax_smoke_fails(overrun ${fake} overrun "blocks: byte 65 of 129 is")
fastjax_smoke_fails(config ${fake} config "magic number is refused: it was not: ncclCommInitRankConfig returned 0")
fastjax_smoke_fails(init ${fake} init "ncclCommInitRankConfig returned 2")
fastjax_smoke_fails(state ${fake} state "ncclCommInitRankConfig returned 6")
fastjax_smoke_fails(alone ${fake} alone "stays away: the communicator is ready, without its other rank")
# It waits for what never happens, and begins early, since it does little else. No step before may take as long, however
# busy the machine is.
fastjax_smoke_fails(blocks ${fake} blocks "the other rank stays away: has not ended after 30 s" LIMIT 30)
set_tests_properties(nccl_smoke_blocks PROPERTIES COST 100)
