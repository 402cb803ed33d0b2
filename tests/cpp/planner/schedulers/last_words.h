// Says what was at work when the process dies: a sanitizer's report, a failed assertion or a signal does not.
#ifndef FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_LAST_WORDS_H_
#define FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_LAST_WORDS_H_

namespace fastjax::test {

// If the process dies in this thread while one lives, say(what) is called first.
class LastWords {
 public:
  LastWords(void (*say)(const void* what), const void* what);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_LAST_WORDS_H_
