#include "crash_report.h"

#include <csignal>
#include <initializer_list>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FASTJAX_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FASTJAX_SANITIZED 1
#endif
#endif
#ifdef FASTJAX_SANITIZED
#include <sanitizer/common_interface_defs.h>
#endif

namespace fastjax::test {
namespace {

struct Report {
  void (*say)(const void* what) = nullptr;
  const void* what = nullptr;
};
thread_local Report current;

void Say() {
  const Report report = current;
  current.say = nullptr;  // once, also if saying it fails
  if (report.say != nullptr) report.say(report.what);
}

// Not safe in a signal handler, strictly; but there is nothing left to lose.
void OnSignal(int signal) {
  Say();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

bool Install() {
#ifdef FASTJAX_SANITIZED
  __sanitizer_set_death_callback(Say);
  std::signal(SIGABRT, OnSignal);
#else
  for (const int signal : {SIGABRT, SIGFPE, SIGILL, SIGSEGV}) std::signal(signal, OnSignal);
#endif
  return true;
}

}  // namespace

CrashReport::CrashReport(void (*say)(const void* what), const void* what) {
  static const bool installed = Install();
  if (installed) current = {say, what};
}

CrashReport::~CrashReport() { current.say = nullptr; }

}  // namespace fastjax::test
