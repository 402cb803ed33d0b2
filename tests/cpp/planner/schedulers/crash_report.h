// Says what was at work when the process dies: a sanitizer's report, a failed assertion or a signal does not.
#ifndef FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_CRASH_REPORT_H_
#define FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_CRASH_REPORT_H_

namespace fastjax::test {

// If the process dies in this thread while one lives, say(what) is called first.
class CrashReport {
 public:
  CrashReport(void (*say)(const void* what), const void* what);
  ~CrashReport();
  CrashReport(const CrashReport&) = delete;
  CrashReport& operator=(const CrashReport&) = delete;
};

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_PLANNER_SCHEDULERS_CRASH_REPORT_H_
