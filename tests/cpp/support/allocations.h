// What a program allocates. One that asks has the operators new and delete of allocations.cc.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_ALLOCATIONS_H_
#define FASTJAX_TESTS_CPP_SUPPORT_ALLOCATIONS_H_

namespace fastjax::test {

// In any thread, so far.
long Allocations();
// Arrays that exist.
long Arrays();
// While it is true, this thread gets none but arrays.
bool& NoMemory();

// While one lives, there is no staging memory but what pools have: arrays that are asked for with std::nothrow.
class NoStagingMemory {
 public:
  NoStagingMemory();
  ~NoStagingMemory();
  NoStagingMemory(const NoStagingMemory&) = delete;
  NoStagingMemory& operator=(const NoStagingMemory&) = delete;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_ALLOCATIONS_H_
