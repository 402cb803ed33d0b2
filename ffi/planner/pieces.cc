#include "planner/pieces.h"

#include <algorithm>
#include <limits>

namespace fastjax::planner {
namespace {

// Narrow enough to be multiplied by a share.
using Ticks = int64_t;
constexpr Ticks kMostTicks = int64_t{1} << 40;

// Work of a piece may come to this many eighths of its even share: a device that gets most of what crosses gets it in
// lumps. Few pieces suffice if none does, more if some do; the price decides, and counts on more.
constexpr std::array<int64_t, 2> kLumps = {8, 12};
constexpr int64_t kWorstLump = 14;

// Pieces from one end of what crosses, until they make all of it.
struct Growing {
  size_t count = 0;
  std::array<Share, kMostPieces> sizes;
  std::array<Share, kMostPieces> sums;  // of those up to each
};

class Work {
 public:
  Work(Ticks time, Share none) : time_(time), none_(std::min(none, kAll - 1)) {}

  Ticks time() const { return time_; }
  Ticks Of(Share piece) const { return std::min(time_ * piece / (kAll - none_), time_); }
  // Returns the time of the pieces from the end up to there.
  Ticks Until(Share share) const { return Of(std::max(share - none_, Share{0})); }
  // The most that takes no longer.
  Share Within(Ticks time) const { return time >= time_ ? kAll : time * (kAll - none_) / time_; }
  Share FirstWithin(Ticks time) const { return std::min(none_ + Within(time), kAll); }

 private:
  Ticks time_;
  Share none_;
};

// Tries some dozens of cuts and keeps the cheapest: for each amount of work that may lie bare, doubled from half a
// start-up on, the cut with the fewest pieces that leaves no more bare; and even cuts, which win where no sizes hide
// the work. A cut's cost is what it adds to the time of one long crossing: start-ups, and the work that lies bare.
class Cutter {
 public:
  Cutter(Ticks scale_out, Work balance, Work redistribute, Ticks start_up, Share smallest)
      : scale_out_(scale_out),
        balance_(balance),
        redistribute_(redistribute),
        start_up_(start_up),
        smallest_(std::min(smallest, kAll)) {}

  Pieces Run() {
    TryEven(1);
    const Ticks most = std::max(balance_.time(), redistribute_.time());
    for (const int64_t lump : kLumps) {
      for (Ticks bare = std::max<Ticks>(start_up_ / 2, 1); bare < most; bare *= 2) TryGrowing(bare, lump);
    }
    for (int64_t count = 2; count <= kMostPieces; ++count) TryEven(count);
    best_.balance = BareBalance(best_);
    best_.redistribute = BareRedistribution(best_);
    return best_;
  }

 private:
  Ticks Crossing(Share piece) const { return start_up_ + scale_out_ * piece / kAll; }
  // Returns the balance of the first piece, or what later pieces wait for.
  Ticks BareBalance(const Pieces& pieces) const {
    Ticks bare = balance_.Until(pieces.edges[1]) / 2;
    for (size_t i = 1; i < static_cast<size_t>(pieces.count); ++i) {
      const Ticks time = start_up_ * static_cast<Ticks>(i) + scale_out_ * pieces.edges[i] / kAll;
      bare = std::max(bare, balance_.Until(pieces.edges[i + 1]) - time);
    }
    return bare;
  }
  // Returns the redistribution of the last piece, and what is left of the other pieces' by then.
  Ticks BareRedistribution(const Pieces& pieces) const {
    const auto last = static_cast<size_t>(pieces.count) - 1;
    const auto behind = [&](size_t i) { return redistribute_.Until(kAll - pieces.edges[i]); };
    Ticks bare = behind(last);
    for (size_t i = 0; i < last; ++i) {
      const Ticks work = std::min((behind(i) - behind(i + 1)) * kWorstLump / 8, redistribute_.time());
      const Ticks time = start_up_ * static_cast<Ticks>(last - i) + scale_out_ * (kAll - pieces.edges[i + 1]) / kAll;
      bare = std::max(bare, work - time);
    }
    return bare;
  }

  void Try(const Pieces& pieces) {
    Ticks cost = start_up_ * pieces.count + BareBalance(pieces);
    if (cost >= least_) return;
    for (size_t i = 0; i < static_cast<size_t>(pieces.count); ++i) {
      if (pieces.edges[i + 1] - pieces.edges[i] < smallest_) return;
    }
    cost += BareRedistribution(pieces);
    if (cost >= least_) return;
    least_ = cost;
    best_ = pieces;
  }

  void TryEven(int64_t count) {
    Pieces pieces;
    pieces.count = static_cast<int32_t>(count);
    for (int64_t i = 1; i <= count; ++i) pieces.edges[i] = kAll * i / count;
    Try(pieces);
  }

  // The first needs no more work than `bare`, and each no more than there is time for while the one before crosses.
  Growing GrowingBy(const Work& work, Ticks bare, int64_t lump) const {
    Growing found;
    Share size = std::max(work.FirstWithin(bare), smallest_);
    Share sum = 0;
    while (true) {
      sum += size;
      found.sizes[found.count] = size;
      found.sums[found.count++] = sum;
      if (sum >= kAll || found.count == found.sizes.size()) return found;
      size = std::max(work.Within(Crossing(size) * 8 / lump), smallest_);
    }
  }

  // The fewest pieces that grow from the front and shrink towards the back, and that fit under each other where both
  // meet. Where they make more than there is, all are smaller in proportion.
  void TryGrowing(Ticks bare, int64_t lump) {
    const Growing front = GrowingBy(balance_, bare, kLumps[0]);
    const Growing back = GrowingBy(redistribute_, bare, lump);
    for (size_t count = 2; count <= kMostPieces; ++count) {
      for (size_t rising = 1; rising < count && rising <= front.count; ++rising) {
        const size_t falling = count - rising;
        if (falling > back.count || front.sums[rising - 1] + back.sums[falling - 1] < kAll) continue;
        const Share one = front.sizes[rising - 1], other = back.sizes[falling - 1];
        if (redistribute_.Of(one) * lump / 8 > Crossing(other) || balance_.Of(other) > Crossing(one)) continue;
        return Try(Joined(front, rising, back, falling));
      }
    }
  }

  static Pieces Joined(const Growing& front, size_t rising, const Growing& back, size_t falling) {
    const size_t count = rising + falling;
    const Share sum = front.sums[rising - 1] + back.sums[falling - 1];
    Pieces pieces;
    pieces.count = static_cast<int32_t>(count);
    for (size_t i = 0; i < rising; ++i) pieces.edges[i + 1] = front.sums[i] * kAll / sum;
    for (size_t i = 0; i < falling; ++i) pieces.edges[count - 1 - i] = kAll - back.sums[i] * kAll / sum;
    pieces.edges[count] = kAll;
    return pieces;
  }

  Ticks scale_out_;
  Work balance_;
  Work redistribute_;
  Ticks start_up_;
  Share smallest_;
  Pieces best_;
  Ticks least_ = std::numeric_limits<Ticks>::max();
};

}  // namespace

Pieces CutAtOnce(Picoseconds scale_out, const AroundWork& balance, const AroundWork& redistribute, Picoseconds start_up,
                 Share smallest) {
  int shift = 0;
  while ((std::max({scale_out, balance.time, redistribute.time, start_up}) >> shift) >= kMostTicks) ++shift;
  const auto ticks = [shift](Picoseconds time) { return static_cast<Ticks>(time >> shift); };
  Pieces pieces = Cutter(ticks(scale_out), Work(ticks(balance.time), balance.none),
                         Work(ticks(redistribute.time), redistribute.none), ticks(start_up), smallest)
                      .Run();
  pieces.balance <<= shift;
  pieces.redistribute <<= shift;
  return pieces;
}

}  // namespace fastjax::planner
