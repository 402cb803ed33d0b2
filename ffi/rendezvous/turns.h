// Declares Turns, which keeps the order of exchanges that have been started (docs/design/overview.md).
#ifndef FASTJAX_RENDEZVOUS_TURNS_H_
#define FASTJAX_RENDEZVOUS_TURNS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/watchdog.h"

namespace fastjax {

// A turn is the place of one exchange of one device among those of that device. The call that starts the exchange makes
// it, and its token is the number by which the exchange finds it, and later starts find the turns before theirs.
// Numbers count from a random one, so that no other array has them. A turn that has begun, or that is no more, is known
// to nobody: a number that is not found is that of one that has begun.
//
// XLA may call an exchange only once a later one has ended: what joins the two is the token, which exists before
// either. So an exchange waits for an earlier one that has not been called for a limited time, and in this process
// never again for one that the same call site starts: the order saves time, and nothing depends on it.
//
// Thread-safe. Nothing is called with the lock.
class Turns final : public Expirable {
 public:
  using Token = uint64_t;

  // How an exchange begins.
  struct Begin {
    int64_t channel = 0;
    int32_t partition = 0;
    std::chrono::milliseconds patience{0};                        // with earlier ones that have not been called
    std::function<void(const std::function<void()>& begun)> run;  // calls `begun` once the device has arrived
  };

  // `last`: the token before the first.
  explicit Turns(Token last = 0) : last_(last) {}

  static Turns& Get();

  // Makes a turn after those of `earlier`, where other numbers may be too. `owner` numbers the call site.
  Token Add(const void* owner, const std::vector<Token>& earlier);
  // Begins the exchange of a turn once all earlier ones have begun, or are waited for no more. False if there is no
  // such turn, or it has been taken.
  bool Take(Token token, Begin begin);
  // Forgets the turns that a call site made: an executable is no more.
  void Forget(const void* owner);

  bool Expire(std::chrono::steady_clock::time_point now) override;

  // For tests, which ask for it: (channel, partition) of the exchanges since this was last called, in the order in
  // which they began, while starts are delayed.
  std::vector<std::pair<int64_t, int32_t>> TakeRecord();

 private:
  struct Turn;
  using Shared = std::shared_ptr<Turn>;

  bool CanBegin(const Turn& turn) const;
  void Hold(const Shared& turn);
  void Run(const Shared& turn);
  void End(const Shared& turn);
  void RunHeld();

  mutable std::mutex mutex_;
  Token last_;
  std::unordered_map<Token, Shared> turns_;  // that have not begun
  std::vector<Shared> held_;                 // that wait for others
  std::unordered_set<const void*> late_;     // call sites that later ones have waited for in vain
  std::vector<std::pair<int64_t, int32_t>> record_;
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_TURNS_H_
