// Blocks signals on fastjax's threads: signals are for the program's own threads.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_SIGNALS_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_SIGNALS_H_

#include <pthread.h>

#include <csignal>

namespace fastjax::network::ucx {

// Threads that are started while one lives, ours or UCX's, get no signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_SIGNALS_H_
