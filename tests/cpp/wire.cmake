# Tests of wires and their parts. Wires run over the UCX whose headers they are built with; their tests are skipped where
# there are headers only.

foreach(name IN ITEMS memory_read_test ring_test)
  add_executable(${name} ${name}.cc)
  target_link_libraries(${name} PRIVATE fastjax_backends_test_support fastjax_options)
  add_test(NAME ${name} COMMAND ${name})
endforeach()

get_target_property(ucx_include_dir fastjax_ucx INTERFACE_INCLUDE_DIRECTORIES)
get_filename_component(ucx_library "${ucx_include_dir}/../lib/libucp.so.0" ABSOLUTE)
if(NOT EXISTS "${ucx_library}")
  message(WARNING "no ${ucx_library}: tests of wires will be skipped")
  set(ucx_library "")
endif()

add_library(fastjax_wire_test_support STATIC wire_rig.cc)
target_compile_definitions(fastjax_wire_test_support PUBLIC "FASTJAX_UCX_TEST_LIBRARY=\"${ucx_library}\"")
# A library that a test loads as UCX.
add_library(fastjax_old_ucx MODULE old_ucx.cc)
target_link_libraries(fastjax_old_ucx PRIVATE fastjax_options)

target_include_directories(fastjax_wire_test_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(fastjax_wire_test_support PUBLIC fastjax_backends fastjax_ucx PRIVATE fastjax_options)

foreach(name IN ITEMS wire_closing_test wire_faults_test wire_liar_test wire_test)
  add_executable(${name} ${name}.cc)
  target_link_libraries(${name} PRIVATE fastjax_wire_test_support fastjax_options)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()

add_dependencies(wire_faults_test fastjax_old_ucx)
target_compile_definitions(wire_faults_test PRIVATE "FASTJAX_OLD_UCX=\"$<TARGET_FILE:fastjax_old_ucx>\"")
