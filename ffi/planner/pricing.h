// Times, in integers: what the fabric charges, and what it costs that senders are not kept in step.
// docs/design/cost_model.md
#ifndef FASTJAX_PLANNER_PRICING_H_
#define FASTJAX_PLANNER_PRICING_H_

#include <algorithm>
#include <cstdint>

#include "planner/topology.h"

namespace fastjax::planner {

// Wide enough for 2^62 rows of any size that is allowed, summed over all stages.
__extension__ using Wide = __int128;
using Picoseconds = Wide;

inline Picoseconds FromNanoseconds(int64_t nanoseconds) { return Picoseconds{nanoseconds} * 1000; }
inline double ToSeconds(Picoseconds time) { return static_cast<double>(time) * 1e-12; }

inline int64_t Saturated(Wide value) {
  constexpr Wide kMost = int64_t{1} << 62;
  return static_cast<int64_t>(value > kMost ? kMost : value);
}

// a * b / c of numbers that are not negative, c positive, rounded down.
inline int64_t MulDiv(int64_t a, int64_t b, int64_t c) {
  constexpr int64_t kHalf = int64_t{1} << 31;
  return a < kHalf && b < kHalf ? a * b / c : Saturated(Wide{a} * b / c);
}

// How long rows take at a bandwidth: a multiplication instead of a division for each question.
class Rate {
 public:
  Rate() = default;
  // Bandwidth 0 counts as the slowest there is.
  Rate(int64_t row_bytes, int64_t bandwidth) {
    const Wide bytes = Wide{row_bytes} * 1'000'000'000'000;
    for (shift_ = kMostFineBits; shift_ > 0; shift_ -= kMostFineBits / 2) {
      if ((bytes << shift_) / std::max<int64_t>(bandwidth, 1) < Wide{1} << 60) break;
    }
    multiplier_ = Saturated((bytes << shift_) / std::max<int64_t>(bandwidth, 1));
  }

  Picoseconds Time(int64_t rows) const { return (Wide{rows} * multiplier_) >> shift_; }
  // Rows that fit into a time, at least; up to 2^62.
  int64_t Rows(Picoseconds time) const { return multiplier_ == 0 ? int64_t{1} << 62 : Quotient(time); }

 private:
  static constexpr int kMostFineBits = 40;

  int64_t Quotient(Picoseconds time) const {
    const Wide most = Wide{1} << (126 - shift_);
    return Saturated((std::min(time, most) << shift_) / multiplier_);
  }

  int64_t multiplier_ = 0;
  int shift_ = 0;
};

struct Pricing {
  Pricing(const Topology& topology, int64_t row_bytes)
      : scale_up(row_bytes, topology.scale_up_bandwidth),
        scale_out(row_bytes, topology.fastest_nic()),
        scale_up_latency(FromNanoseconds(topology.scale_up_latency_ns)),
        scale_out_latency(FromNanoseconds(topology.scale_out_latency_ns)),
        transfer_overhead(FromNanoseconds(topology.transfer_overhead_ns)) {}

  // What a device takes to send or receive rows inside its server, its start-up included; nothing for none.
  Picoseconds InsideTime(int64_t rows) const {
    return rows == 0 ? Picoseconds{0} : scale_up_latency + scale_up.Time(rows);
  }
  // A start-up of a scale-out stage, in rows of the fastest NIC.
  int64_t startup_rows() const { return scale_out.Rows(scale_out_latency); }

  Rate scale_up;
  Rate scale_out;  // of the fastest NIC
  Picoseconds scale_up_latency;
  Picoseconds scale_out_latency;
  Picoseconds transfer_overhead;
};

// Time of an exchange that sends everything at once, whose busiest NIC works for `busiest`, and whose blocks would take
// `in_step` if senders went from receiver to receiver together. The more uneven the blocks, the more senders meet at a
// receiver: the share of time by which in_step exceeds the busiest NIC's is what incast may spoil, and incast_loss says
// how much of that it does.
inline Picoseconds AtOnceTime(const Topology& topology, Picoseconds busiest, Picoseconds in_step) {
  if (in_step <= busiest) return busiest;
  constexpr Wide kMillion = 1'000'000;
  const Wide drift_ppm = (in_step - busiest) / (in_step / kMillion + 1);
  return busiest + busiest / kMillion * drift_ppm / kMillion * topology.incast_loss_ppm;
}

// Time of a NIC that works for `busy`, on as many messages, which its device posts one by one: it goes on with one
// while the next is posted, so that the slower of both counts, and one message's worth of the other. Lists are in such
// orders that senders which post together meet at no receiver.
inline Picoseconds PostedTime(Picoseconds busy, Picoseconds overhead, int64_t messages) {
  if (messages == 0) return busy;
  return std::max(busy + overhead, overhead * messages + busy / messages);
}

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_PRICING_H_
