// A library needs a source; CMake compiles the headers that CMakeLists.txt lists beside it.
