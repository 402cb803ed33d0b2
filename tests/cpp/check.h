// The least a test needs: checks that say where and what, a count, and an exit code.
#ifndef FASTJAX_TESTS_CPP_CHECK_H_
#define FASTJAX_TESTS_CPP_CHECK_H_

#include <iostream>
#include <sstream>
#include <string>
#include <utility>

namespace fastjax::test {

struct Counts {
  long checks = 0;
  long failures = 0;
};

inline Counts& GetCounts() {
  static Counts counts;
  return counts;
}

// Says which case is checked, for as long as it lives; cases nest.
class Context {
 public:
  explicit Context(std::string text) : outer_(Current()), text_(std::move(text)) { Current() = this; }
  ~Context() { Current() = outer_; }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  static const Context*& Current() {
    static const Context* current = nullptr;
    return current;
  }
  const Context* outer() const { return outer_; }
  const std::string& text() const { return text_; }

 private:
  const Context* outer_;
  std::string text_;
};

inline void Fail(const char* file, int line, const std::string& message) {
  constexpr long kPrinted = 20;
  if (++GetCounts().failures > kPrinted) return;
  std::cerr << file << ":" << line << ": " << message << "\n";
  for (const Context* context = Context::Current(); context != nullptr; context = context->outer()) {
    std::cerr << "  in " << context->text() << "\n";
  }
}

template <typename A, typename B, typename Compare>
bool CheckCompare(const char* file, int line, const char* text, const A& a, const B& b, Compare compare) {
  ++GetCounts().checks;
  if (compare(a, b)) return true;
  std::ostringstream message;
  message << text << " is false: " << a << " and " << b;
  Fail(file, line, message.str());
  return false;
}

inline bool CheckTrue(const char* file, int line, const char* text, bool value) {
  ++GetCounts().checks;
  if (!value) Fail(file, line, std::string(text) + " is false");
  return value;
}

// For main to return.
inline int Finish(const char* name) {
  const Counts& counts = GetCounts();
  std::cout << name << ": " << counts.checks << " checks, " << counts.failures << " failures\n";
  return counts.checks > 0 && counts.failures == 0 ? 0 : 1;
}

}  // namespace fastjax::test

#define FASTJAX_CHECK_COMPARE(a, op, b)                                          \
  ::fastjax::test::CheckCompare(__FILE__, __LINE__, #a " " #op " " #b, (a), (b), \
                                [](const auto& x, const auto& y) { return x op y; })
#define CHECK(condition) ::fastjax::test::CheckTrue(__FILE__, __LINE__, #condition, static_cast<bool>(condition))
#define CHECK_EQ(a, b) FASTJAX_CHECK_COMPARE(a, ==, b)
#define CHECK_NE(a, b) FASTJAX_CHECK_COMPARE(a, !=, b)
#define CHECK_LE(a, b) FASTJAX_CHECK_COMPARE(a, <=, b)
#define CHECK_LT(a, b) FASTJAX_CHECK_COMPARE(a, <, b)
#define CHECK_GE(a, b) FASTJAX_CHECK_COMPARE(a, >=, b)
#define CHECK_GT(a, b) FASTJAX_CHECK_COMPARE(a, >, b)

#endif  // FASTJAX_TESTS_CPP_CHECK_H_
