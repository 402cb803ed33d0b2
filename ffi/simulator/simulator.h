// Runs a program of flows, event by event.
#ifndef FASTJAX_SIMULATOR_SIMULATOR_H_
#define FASTJAX_SIMULATOR_SIMULATOR_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "simulator/program.h"
#include "simulator/sharing.h"

namespace fastjax::simulator {

// Tasks that share links, directly or by way of others, are a pool. When one begins or ends, the rates of its pool are
// computed again, and no others.
//
// In pools of 1,024 tasks and more, such as those of an exchange that sends everything at once, rates are computed
// for several ends together: for a 64th of the pool's tasks, as far as they end within `resolution` of the time that
// the busiest link needs. A task ends when it does; only what it leaves is given to others a little later. So are those
// that begin together taken in, as far as they do within that time.
class Simulator {
 public:
  Simulator(Program program, double resolution);
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  // Goes on for up to `events` events. Returns whether nothing is left to happen: everything is done, or what is left
  // waits for itself.
  bool Advance(int64_t events);

  bool is_done(int32_t number) const { return is_done_[number]; }
  // Seconds, by task.
  const std::vector<double>& ready() const { return ready_; }
  const std::vector<double>& start() const { return start_; }
  const std::vector<double>& end() const { return end_; }

 private:
  struct Pool {
    std::vector<int32_t> tasks;
    double since = 0;  // when their rates began
    double due = 0;    // when they are to be computed again
    bool active = false;
  };
  using Moment = std::pair<double, int32_t>;  // and a task or a pool

  void IndexEdges();
  void FindLatest(double resolution);
  double NextMoment() const;
  void Dissolve(int32_t number, double now);
  void Begin(int32_t number, double now);
  double Admitted(const Task& starting, double now) const;
  void Finish(int32_t number, double at, double now);
  void Repool(double now);
  void Open(Pool* pool, int32_t number, double now);
  double Due(const Pool& pool);
  int32_t Root(int32_t link);
  const Task& task(int32_t number) const { return program_.tasks[number]; }

  Program program_;
  Sharing sharing_;
  double latest_ = 0;  // seconds by which ends of a large pool may be put together
  std::vector<int32_t> first_after_, after_, waits_for_;
  std::vector<double> ready_, start_, end_, left_, rate_, ends_at_;
  std::vector<bool> is_done_;

  LeastFirst<Moment> starts_;
  LeastFirst<Moment> dues_;
  std::vector<Pool> pools_;
  std::vector<int32_t> free_pools_;
  std::vector<int32_t> pool_of_;  // of each link, or -1
  std::vector<int32_t> parent_;   // of each link, while pools are told apart
  std::vector<int32_t> loose_;    // tasks that are to be put into pools
  std::vector<int32_t> finished_, opened_;
  std::vector<double> rates_, sorted_;
};

}  // namespace fastjax::simulator

#endif  // FASTJAX_SIMULATOR_SIMULATOR_H_
