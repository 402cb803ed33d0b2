// A library needs a source; CMake compiles the headers that tests/cpp/CMakeLists.txt lists.
