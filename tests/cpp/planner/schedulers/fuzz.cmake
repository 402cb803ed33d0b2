# Fuzz targets: with libFuzzer where everything is built for it (the preset `fuzz`, which needs clang), otherwise with a
# driver of our own that knows nothing of coverage.
set(fuzz_corpus "${CMAKE_CURRENT_BINARY_DIR}/corpus")
add_test(
  NAME fuzz_corpus
  COMMAND random_plans --corpus "${fuzz_corpus}" 200 1
)
set_tests_properties(fuzz_corpus PROPERTIES FIXTURES_SETUP fuzz_corpus)

foreach(name IN ITEMS plan_fuzz table_fuzz)
  add_executable(${name} ${name}.cc)
  target_link_libraries(${name} PRIVATE ${random_plans_objects} fastjax_options fastjax_planner)
  if(FASTJAX_SANITIZE MATCHES "fuzzer")
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${name} PRIVATE fuzz_main.cc)
  endif()
  add_test(NAME ${name} COMMAND ${name} -runs=3000 -seed=1 "${fuzz_corpus}/${name}")
  set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED fuzz_corpus)
endforeach()
