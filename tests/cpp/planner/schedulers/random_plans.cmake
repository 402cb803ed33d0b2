# random_plans, and the same program with the planner compiled in other ways: their plans must not differ by a bit.
find_package(Threads REQUIRED)

set(random_plans_sources plan_checks.cc problem.cc)
list(TRANSFORM random_plans_sources PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
set(tests_folder "${PROJECT_SOURCE_DIR}/tests/cpp")
set(check_sources replay.cc table_checks.cc)
list(TRANSFORM check_sources PREPEND "${tests_folder}/support/")
get_target_property(planner_sources fastjax_planner SOURCES)
list(TRANSFORM planner_sources PREPEND "${PROJECT_SOURCE_DIR}/ffi/planner/")

add_library(random_plans_checks OBJECT ${random_plans_sources})
target_link_libraries(random_plans_checks PRIVATE fastjax_options)
set(random_plans_objects random_plans_checks fastjax_plan_checks)

add_executable(random_plans random_plans.cc)
target_link_libraries(random_plans PRIVATE ${random_plans_objects} fastjax_options fastjax_planner Threads::Threads)
add_test(
  NAME random_plans
  COMMAND random_plans 2000 1 --threads 2
)
set(digest_programs random_plans)
set(digest_targets random_plans)

# The planner once more, with a scheduler of the tests' own: its file, and its line in added_schedulers.inc.
fastjax_scheduler_sources(
  added_sources
  "${CMAKE_CURRENT_SOURCE_DIR}/added_schedulers.inc"
  "${CMAKE_CURRENT_SOURCE_DIR}/"
)
add_executable(
  added_scheduler_test
  added_scheduler_test.cc
  ${random_plans_sources}
  ${check_sources}
  ${planner_sources}
  ${added_sources}
)
target_include_directories(added_scheduler_test PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/ffi")
target_compile_definitions(added_scheduler_test PRIVATE "FASTJAX_MORE_SCHEDULERS=\"added_schedulers.inc\"")
target_link_libraries(added_scheduler_test PRIVATE fastjax_options fastjax_test_main)
add_test(NAME added_scheduler_test COMMAND added_scheduler_test)

# Of planners that are compiled in other ways, sanitizers have nothing to say.
if(FASTJAX_SANITIZE)
  return()
endif()

# Without warnings: what some optimisations warn of is not what this is about.
function(fastjax_add_planner_variant name)
  add_library(fastjax_planner_${name} STATIC EXCLUDE_FROM_ALL ${planner_sources})
  target_include_directories(fastjax_planner_${name} PRIVATE "${PROJECT_SOURCE_DIR}/ffi")
  target_compile_options(fastjax_planner_${name} PRIVATE ${ARGN})
  add_executable(random_plans_${name} random_plans.cc)
  target_link_libraries(
    random_plans_${name}
    PRIVATE ${random_plans_objects} fastjax_options fastjax_planner_${name} Threads::Threads
  )
  set(digest_programs ${digest_programs} random_plans_${name} PARENT_SCOPE)
  set(digest_targets ${digest_targets} random_plans_${name} PARENT_SCOPE)
endfunction()

fastjax_add_planner_variant(plain -O0 -funsigned-char -fwrapv)
include(CheckCXXCompilerFlag)
set(
  native_flags
  -O3
  -march=native
  -ffast-math
  -ffp-contract=fast
  -funroll-loops
  -fsigned-char
)
check_cxx_compiler_flag("-march=native -ffp-contract=fast" FASTJAX_HAS_NATIVE)
if(FASTJAX_HAS_NATIVE)
  fastjax_add_planner_variant(native ${native_flags})
endif()

# Another compiler, where there is one. A project has one compiler only, hence commands; sanitizers would have to match.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(others clang++)
  foreach(version RANGE 24 14 -1)
    list(APPEND others clang++-${version})
  endforeach()
else()
  set(others g++)
endif()
find_program(FASTJAX_OTHER_CXX NAMES ${others} DOC "A compiler of another make, to compare plans with")
if(FASTJAX_OTHER_CXX)
  set(
    other_sources
    ${random_plans_sources}
    ${check_sources}
    "${CMAKE_CURRENT_SOURCE_DIR}/random_plans.cc"
    ${planner_sources}
  )
  set(other_objects)
  foreach(source IN LISTS other_sources)
    cmake_path(GET source STEM stem)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/other/${stem}.o")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${CMAKE_CURRENT_BINARY_DIR}/other"
      COMMAND
        "${FASTJAX_OTHER_CXX}" -std=c++17 -O2 -pthread "-I${tests_folder}" "-I${PROJECT_SOURCE_DIR}/ffi" -MD -MF
        "${object}.d" -c "${source}" -o "${object}"
      DEPENDS "${source}"
      DEPFILE "${object}.d"
      COMMENT "Building ${stem}.cc with ${FASTJAX_OTHER_CXX}"
      VERBATIM
    )
    list(APPEND other_objects "${object}")
  endforeach()
  set(other_program "${CMAKE_CURRENT_BINARY_DIR}/random_plans_other")
  add_custom_command(
    OUTPUT "${other_program}"
    COMMAND "${FASTJAX_OTHER_CXX}" -pthread ${other_objects} -o "${other_program}"
    DEPENDS ${other_objects}
    VERBATIM
  )
  add_custom_target(random_plans_other_compiler ALL DEPENDS "${other_program}")
  list(APPEND digest_programs "${other_program}")
  list(APPEND digest_targets random_plans_other_compiler)
endif()

list(TRANSFORM digest_programs REPLACE "^(random_plans.*)$" "$<TARGET_FILE:\\1>")
list(JOIN digest_programs " " digest_programs)
add_test(
  NAME same_plans
  COMMAND
    "${CMAKE_COMMAND}" "-DPROGRAMS=${digest_programs}" "-DARGUMENTS=--digest 2000 1" "-DMORE=--threads 2" -P
    "${CMAKE_CURRENT_SOURCE_DIR}/same_output.cmake"
)

# What same_plans runs, the test that the sanitizers leave out.
add_custom_target(planner_variants DEPENDS ${digest_targets})
