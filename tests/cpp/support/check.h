// The least a test needs: checks that say where and what, and an exit code.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_CHECK_H_
#define FASTJAX_TESTS_CPP_SUPPORT_CHECK_H_

#include <atomic>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fastjax::test {

// Of all threads. A check writes only if it is the first or fails, so that checks cost the same on any number of them.
struct Checks {
  std::atomic<bool> any{false};
  std::atomic<long> failures{0};
};

inline Checks& AllChecks() {
  static Checks checks;
  return checks;
}

inline void NoteCheck() {
  if (!AllChecks().any.load(std::memory_order_relaxed)) AllChecks().any = true;
}

// Says which case is checked, for as long as it lives; cases nest.
class Context {
 public:
  explicit Context(std::string text) : outer_(Current()), text_(std::move(text)) { Current() = this; }
  ~Context() { Current() = outer_; }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  static const Context*& Current() {
    static thread_local const Context* current = nullptr;
    return current;
  }
  const Context* outer() const { return outer_; }
  const std::string& text() const { return text_; }

 private:
  const Context* outer_;
  std::string text_;
};

// While it lives, failures of this thread are its own: neither printed nor counted elsewhere. For tests of the checks.
class Trial {
 public:
  Trial() : outer_(Current()) { Current() = this; }
  ~Trial() { Current() = outer_; }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  static Trial*& Current() {
    static thread_local Trial* current = nullptr;
    return current;
  }
  void Note(const char* file, int line, const std::string& message) {
    if (failures_++ == 0) first_ = std::string(file) + ":" + std::to_string(line) + ": " + message;
  }
  long failures() const { return failures_; }
  const std::string& first() const { return first_; }

 private:
  Trial* outer_;
  long failures_ = 0;
  std::string first_;
};

inline void Fail(const char* file, int line, const std::string& message) {
  constexpr long kPrinted = 20;
  if (Trial::Current() != nullptr) return Trial::Current()->Note(file, line, message);
  if (++AllChecks().failures > kPrinted) return;
  std::ostringstream text;  // at once, so that threads do not mix their lines
  text << file << ":" << line << ": " << message << "\n";
  for (const Context* context = Context::Current(); context != nullptr; context = context->outer()) {
    text << "  in " << context->text() << "\n";
  }
  std::cerr << text.str();
}

template <typename A, typename B, typename Compare>
bool CheckCompare(const char* file, int line, const char* text, const A& a, const B& b, Compare compare) {
  NoteCheck();
  if (compare(a, b)) return true;
  std::ostringstream message;
  message << text << " is false: " << a << " and " << b;
  Fail(file, line, message.str());
  return false;
}

inline bool CheckTrue(const char* file, int line, const char* text, bool value) {
  NoteCheck();
  if (!value) Fail(file, line, std::string(text) + " is false");
  return value;
}

inline bool Contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

inline bool CheckContains(const char* file, int line, std::string_view text, std::string_view part) {
  NoteCheck();
  if (Contains(text, part)) return true;
  Fail(file, line, "'" + std::string(part) + "' is not in '" + std::string(text) + "'");
  return false;
}

// For main to return, when all other threads have been joined.
inline int Finish(const char* name) {
  const long failures = AllChecks().failures;
  std::cout << name << ": " << (AllChecks().any ? "" : "no checks, ") << failures << " failures\n";
  return AllChecks().any && failures == 0 ? 0 : 1;
}

// A test of the program that it is in.
struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& AllTests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registered {
  Registered(const char* name, void (*run)()) { AllTests().push_back({name, run}); }
};

// Runs all tests, or the one that is named.
inline void RunTests(int argc, char** argv) {
  for (const Test& test : AllTests()) {
    if (argc > 1 && test.name != std::string_view(argv[1])) continue;
    const Context context(test.name);
    test.run();
  }
}

}  // namespace fastjax::test

// Defines a test, which main runs: those of a file in their order.
#define TEST(Name)                                                                                          \
  void Test##Name();                                                                                        \
  const ::fastjax::test::Registered k##Name##IsRegistered(#Name, &Test##Name); /* NOLINT(cert-err58-cpp) */ \
  void Test##Name()

#define FASTJAX_CHECK_COMPARE(a, op, b)                                          \
  ::fastjax::test::CheckCompare(__FILE__, __LINE__, #a " " #op " " #b, (a), (b), \
                                [](const auto& x, const auto& y) { return x op y; })
#define CHECK(condition) ::fastjax::test::CheckTrue(__FILE__, __LINE__, #condition, static_cast<bool>(condition))
#define CHECK_CONTAINS(text, part) ::fastjax::test::CheckContains(__FILE__, __LINE__, (text), (part))
#define CHECK_EQ(a, b) FASTJAX_CHECK_COMPARE(a, ==, b)
#define CHECK_NE(a, b) FASTJAX_CHECK_COMPARE(a, !=, b)
#define CHECK_LE(a, b) FASTJAX_CHECK_COMPARE(a, <=, b)
#define CHECK_LT(a, b) FASTJAX_CHECK_COMPARE(a, <, b)
#define CHECK_GE(a, b) FASTJAX_CHECK_COMPARE(a, >=, b)
#define CHECK_GT(a, b) FASTJAX_CHECK_COMPARE(a, >, b)

#endif  // FASTJAX_TESTS_CPP_SUPPORT_CHECK_H_
