#include "planner/balance.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "planner/bits.h"

// FAST (arXiv 2505.09764) balances a tile in any way that makes its rails equal. This moves the fewest rows: a
// transport problem, of minimum cost by the shape of its costs. A row (i, j) on rail k moves [k != i] + [k != j] times.
// A diagonal row costs 0 on its own rail and 2 elsewhere; any other costs 1 on rail i or j and 2 elsewhere. Giving a
// diagonal row's place away frees room for one other row, which saves 1 at most and costs 2, so diagonal rows come
// first. What remains is to place as many of the others as possible on one of their two ends: a maximum flow, found by
// augmenting paths from rails above their quota to rails below it, along rows that may change from one end to the
// other. Rails are the nodes; the residual capacity from rail i to rail j is here_[i][j], the rows on i that could lie
// on j.
//
// Short paths come first, as in the algorithms of Dinic and of Edmonds and Karp, and nearly all flow is found by them:
// all rows on their origins (PlaceOnOrigins); paths of one step (PushToRooms); of two and three (PushThroughOthers);
// then breadth-first searches until none finds a path (Augment). What is left over then must lie on neither end.
//
// Invariants. A rail's rows are its quota plus excess_ minus space_, one of which is 0. The rows of block (i, j) are,
// in this order, those on rail i, those on rail j and the leftover, so each end has one segment of it. A rail above its
// quota has only rows of its own above it: no path runs through it, so no path brings it any.

namespace fastjax::planner {
namespace {

// What compilers like to turn into branches, which could not be predicted here. Of numbers that are 2^62 at most.
inline int64_t NotNegative(int64_t a) { return a & ~(a >> 63); }
inline int64_t Smaller(int64_t a, int64_t b) { return a - NotNegative(a - b); }

// The order of a rail's list is
//   head      origin == rail != target: need no balance, so they can leave first,
//   two-move  neither end is the rail,
//   diagonal  origin == rail == target,
//   tail      origin != rail == target: need no redistribution, so nothing follows the last stage.
//
// kRails is the number of rails, or 0 where the compiler is not told. Keeps what it computes with between tiles, so
// that it does not allocate.
template <int32_t kRails>
class Balancer final : public RailFiller {
 public:
  explicit Balancer(int32_t rails)
      : rails_(rails),
        words_(BitWords(rails)),
        placed_(static_cast<size_t>(rails) * rails),
        here_(static_cast<size_t>(rails) * rails),
        surplus_(rails),
        excess_(rails),
        space_(rails),
        movable_(static_cast<size_t>(rails) * words_),
        over_(words_),
        room_(words_),
        unseen_(words_),
        parent_(rails),
        queue_(rails),
        first_piece_(rails + 1) {
    pieces_.reserve(static_cast<size_t>(rails) * (rails + 1));
  }

  // Segments that a tile needs of the pool at most: a diagonal block lies on its own rail, any other on its two ends
  // (together m + 2 m (m - 1)); what is left over is laid out in one sweep over blocks and rails, which makes at most
  // m * m + m - 1 pieces; and one is written before it is known to be needed.
  int64_t max_segments() const override { return 3 * int64_t{rails()} * rails(); }
  bool heeds_viewer() const override { return true; }

  int32_t Fill(const int64_t* tile, int64_t stride, const int64_t* quotas, const Viewer* viewer, Rail* lists,
               Segment* pool, int32_t first) override {
    Assign(tile, stride, quotas);
    if (viewer != nullptr) {
      first = WriteRail(viewer->local, &lists[viewer->local], pool, first);
      return WriteOthers(*viewer, quotas, lists, pool, first);
    }
    for (int32_t rail = 0; rail < rails(); ++rail) first = WriteRail(rail, &lists[rail], pool, first);
    return first;
  }

 private:
  int32_t rails() const { return kRails == 0 ? rails_ : kRails; }
  // 64-bit words that hold a set of rails.
  int32_t set_words() const { return kRails == 0 ? words_ : BitWords(kRails); }
  // A local index beyond the last goes on from the first.
  int32_t Around(int32_t i) const { return i < rails() ? i : i - rails(); }

  void Assign(const int64_t* tile, int64_t stride, const int64_t* quotas) {
    const int32_t m = rails();
    const int32_t words = set_words();
    PlaceOnOrigins(tile, stride, quotas);
    if (FindOver()) {
      ForEachBit(over_.data(), words, [&](int32_t rail) { excess_[rail] -= PushToRooms(rail, excess_[rail]); });
    }
    if (words == 1 && FindOver()) {
      ForEachBit(over_.data(), words, [&](int32_t rail) { PushThroughOthers(rail); });
    }
    if (FindOver()) {
      FindMovable();
      while ((words > 1 || CanMove()) && Augment()) {
      }
      for (int32_t block = 0; block < m * m; ++block) here_[block] = Smaller(here_[block], placed_[block]);
    }
    SpreadLeftover();
  }

  void PlaceOnOrigins(const int64_t* tile, int64_t stride, const int64_t* quotas) {
    const int32_t m = rails();
    surplus_rows_ = 0;
    for (int32_t i = 0; i < m; ++i) {
      const int64_t* row = tile + i * stride;
      int64_t* placed = &placed_[static_cast<size_t>(i) * m];
      int64_t* here = &here_[static_cast<size_t>(i) * m];
      int64_t load = 0;
      for (int32_t j = 0; j < m; ++j) {
        placed[j] = here[j] = row[j];
        load += row[j];
      }
      const int64_t surplus = std::max<int64_t>(row[i] - quotas[i], 0);
      surplus_[i] = surplus;
      surplus_rows_ += surplus;
      placed[i] -= surplus;
      here[i] = 0;
      const int64_t excess = load - surplus - quotas[i];
      excess_[i] = std::max<int64_t>(excess, 0);
      space_[i] = std::max<int64_t>(-excess, 0);
    }
  }

  // Up to `most` rows of a rail's own, straight to rails below their quota. Whether there are any is as good as random,
  // so instead of a branch each is moved, if only by 0 rows.
  int64_t PushToRooms(int32_t from, int64_t most) {
    const int32_t m = rails();
    int64_t* here = &here_[static_cast<size_t>(from) * m];
    int64_t* space = space_.data();
    int64_t wanted = 0;
    int64_t left = most;
    for (int32_t to = 0; to < m; ++to) {
      wanted += Smaller(here[to], space[to]);
      const int64_t left_then = NotNegative(most - wanted);
      const int64_t rows = left - left_then;
      left = left_then;
      here[to] -= rows;
      space[to] -= rows;
    }
    return most - left;
  }

  // Along paths of two steps, and of three by way of the rail that takes most: nearly all that the search would find.
  // Paths do not run through other rails above their quota, whose surplus has to be rows of their own.
  void PushThroughOthers(int32_t from) {
    const int32_t m = rails();
    int64_t* here = &here_[static_cast<size_t>(from) * m];
    const int32_t widest = Widest(from);
    int64_t* beyond = &here_[static_cast<size_t>(widest) * m];
    int64_t through = here[widest];
    int64_t left = excess_[from];
    const int64_t rows = PushToRooms(widest, Smaller(through, left));
    through -= rows;
    left -= rows;
    uint64_t vias = 0;
    for (int32_t via = 0; via < m; ++via) vias |= uint64_t{(excess_[via] | space_[via]) == 0} << via;
    ClearBit(&vias, widest);
    for (; vias != 0 && left > 0; vias &= vias - 1) {
      const int32_t via = LowestBit(vias);
      const int64_t straight = here[via];
      const int64_t rows = PushToRooms(via, Smaller(left, straight + Smaller(beyond[via], through)));
      const int64_t detour = NotNegative(rows - straight);
      here[via] -= rows - detour;
      beyond[via] -= detour;
      through -= detour;
      left -= rows;
    }
    here[widest] = through;
    excess_[from] = left;
  }

  // Returns, of the rails that are not above their quota, the one that most of a rail's own rows could move to.
  int32_t Widest(int32_t from) const {
    const int32_t m = rails();
    const int64_t* here = &here_[static_cast<size_t>(from) * m];
    int64_t widest = 0;
    int64_t width = -1;
    for (int64_t via = 0; via < m; ++via) {
      const int64_t rows = excess_[via] > 0 ? -1 : here[via];
      widest += (via - widest) & ((width - rows) >> 63);
      width += NotNegative(rows - width);
    }
    return static_cast<int32_t>(widest);
  }

  // Rails above their quota; whether there are any.
  bool FindOver() {
    const int32_t m = rails();
    uint64_t any = 0;
    for (int32_t word = 0; word < set_words(); ++word) {
      uint64_t bits = 0;
      for (int32_t rail = word * 64; rail < std::min(word * 64 + 64, m); ++rail) {
        bits |= uint64_t{excess_[rail] > 0} << (rail % 64);
      }
      over_[word] = bits;
      any |= bits;
    }
    return any != 0;
  }

  // What the search needs, which may return rows to their origin.
  void FindMovable() {
    const int32_t m = rails();
    const int32_t words = set_words();
    std::fill(movable_.begin(), movable_.end(), 0);
    std::fill(room_.begin(), room_.end(), 0);
    for (int32_t from = 0; from < m; ++from) {
      room_[from / 64] |= uint64_t{space_[from] > 0} << (from % 64);
      for (int32_t to = from + 1; to < m; ++to) {
        int64_t& there = here_[from * m + to];
        int64_t& back = here_[to * m + from];
        const int64_t at_target = placed_[from * m + to] - there;
        there += placed_[to * m + from] - back;
        back += at_target;
        movable_[from * words + to / 64] |= uint64_t{there > 0} << (to % 64);
        movable_[to * words + from / 64] |= uint64_t{back > 0} << (from % 64);
      }
    }
  }

  // Whether a path leads from a rail above its quota to one below it, where one word holds them all.
  bool CanMove() const {
    uint64_t reached = over_[0];
    for (uint64_t next = reached; next != 0;) {
      const uint64_t found = movable_[LowestBit(next)] & ~reached;
      reached |= found;
      next = (next & (next - 1)) | found;
    }
    return (reached & room_[0]) != 0;
  }

  // Breadth-first from all rails above their quota at once, so a path never runs through another such rail. Pushes
  // along every path of the search that still lets rows through when it is found; the first always does.
  bool Augment() {
    const int32_t words = set_words();
    int32_t queued = 0;
    bool pushed = false;
    for (int32_t word = 0; word < words; ++word) unseen_[word] = ~uint64_t{0};
    TakeCommon(over_.data(), unseen_.data(), words, [&](int32_t rail) {
      parent_[rail] = rail;
      queue_[queued++] = rail;
    });
    for (int32_t head = 0; head < queued; ++head) {
      const int32_t from = queue_[head];
      const uint64_t* movable = &movable_[static_cast<size_t>(from) * words];
      int64_t rows = 1;
      for (int32_t to = 0; rows > 0 && (to = FirstCommon(movable, room_.data(), words)) >= 0;) {
        rows = PushAlong(from, to);
        pushed = pushed || rows > 0;
      }
      TakeCommon(movable, unseen_.data(), words, [&](int32_t rail) {
        parent_[rail] = from;
        queue_[queued++] = rail;
      });
    }
    return pushed;
  }

  // Returns as many rows as the search's path to `from`, and the step from there to `to`, let through.
  int64_t PushAlong(int32_t from, int32_t to) {
    const int32_t m = rails();
    int64_t rows = std::min(space_[to], here_[from * m + to]);
    int32_t source = from;
    for (; parent_[source] != source; source = parent_[source]) {
      rows = std::min(rows, here_[parent_[source] * m + source]);
    }
    rows = std::min(rows, excess_[source]);
    if (rows == 0) return 0;
    Move(from, to, rows);
    for (int32_t rail = from; rail != source; rail = parent_[rail]) Move(parent_[rail], rail, rows);
    excess_[source] -= rows;
    space_[to] -= rows;
    if (excess_[source] == 0) ClearBit(over_.data(), source);
    if (space_[to] == 0) ClearBit(room_.data(), to);
    return rows;
  }

  void Move(int32_t from, int32_t to, int64_t rows) {
    const int32_t m = rails();
    int64_t& left = here_[from * m + to];
    left -= rows;
    here_[to * m + from] += rows;
    const auto words = static_cast<size_t>(set_words());
    if (left == 0) ClearBit(&movable_[static_cast<size_t>(from) * words], to);
    SetBit(&movable_[static_cast<size_t>(to) * words], from);
  }

  // What no end has room for goes to the rails that have, in one sweep over blocks and rails. A rail above its quota
  // never received rows by a path, so its surplus is rows of its own.
  void SpreadLeftover() {
    const int32_t m = rails();
    pieces_.clear();
    std::fill(first_piece_.begin(), first_piece_.end(), 0);
    int32_t rail = 0;
    for (int32_t i = 0; surplus_rows_ > 0 && i < m; ++i) TakeLeftover(i, i, surplus_[i], &rail);
    ForEachBit(over_.data(), set_words(), [&](int32_t i) {
      // The largest block is likely to be enough, which makes the fewest pieces.
      int64_t left = excess_[i];
      int32_t j = Widest(i);
      for (int32_t next = 0; left > 0; j = next++) {
        int64_t& here = here_[i * m + j];
        const int64_t rows = std::min(left, here);
        if (rows == 0) continue;
        here -= rows;
        placed_[i * m + j] -= rows;
        left -= rows;
        TakeLeftover(i, j, rows, &rail);
      }
    });
    if (pieces_.empty()) return;
    for (int32_t i = 0; i < m; ++i) first_piece_[i + 1] += first_piece_[i];
  }

  void TakeLeftover(int32_t origin, int32_t target, int64_t rows, int32_t* rail) {
    int64_t row = placed_[origin * rails() + target];
    while (rows > 0) {
      while (space_[*rail] == 0) ++*rail;
      const int64_t taken = std::min(rows, space_[*rail]);
      pieces_.push_back({0, row, taken, origin, target});
      ++first_piece_[*rail + 1];
      space_[*rail] -= taken;
      rows -= taken;
      row += taken;
    }
  }

  // Peers are taken round-robin from the one behind the rail, so that the rails of a server do not all serve the same
  // device at the same time. Whether a block has rows here is as good as random, so instead of a branch each is
  // written, and kept if it has.
  int32_t WriteRail(int32_t rail, Rail* out, Segment* pool, int32_t first) const {
    const int32_t m = rails();
    int64_t position = 0;
    out->first = first;
    const auto append = [&](int64_t first_row, int64_t rows, int32_t origin, int32_t target) {
      pool[first] = {position, first_row, rows, origin, target};
      position += rows;
      first += rows > 0;
    };
    for (int32_t shift = 1; shift < m; ++shift) {
      const int32_t target = Around(rail + shift);
      append(0, here_[rail * m + target], rail, target);
    }
    for (int32_t i = first_piece_[rail]; i < first_piece_[rail + 1]; ++i) {
      const Segment& piece = pieces_[i];
      append(piece.first_row, piece.rows, piece.origin, piece.target);
    }
    append(0, placed_[rail * m + rail], rail, rail);
    for (int32_t shift = 1; shift < m; ++shift) {
      const int32_t origin = Around(rail + shift);
      const int64_t at_origin = here_[origin * m + rail];
      append(at_origin, placed_[origin * m + rail] - at_origin, origin, rail);
    }
    out->end = first;
    out->rows = position;
    return first;
  }

  // Writes, of the lists that WriteRail writes, what starts or ends at the viewer, on rails other than the viewer's
  // own.
  int32_t WriteOthers(const Viewer& viewer, const int64_t* quotas, Rail* lists, Segment* pool, int32_t first) const {
    const int32_t m = rails();
    for (int32_t shift = 1; shift < m; ++shift) {
      const int32_t rail = Around(viewer.local + m - shift);
      lists[rail].first = first;
      first = viewer.sends ? WriteSentBy(rail, shift, quotas[rail], pool, first)
                           : WriteReceivedBy(rail, shift, pool, first);
      lists[rail].end = first;
    }
    return first;
  }

  // What has the origin `shift` behind the rail: some pieces, and one block of the tail.
  int32_t WriteSentBy(int32_t rail, int32_t shift, int64_t quota, Segment* pool, int32_t first) const {
    const int32_t m = rails();
    const int32_t origin = Around(rail + shift);
    if (first_piece_[rail] < first_piece_[rail + 1]) {
      const int64_t* heads = &here_[static_cast<size_t>(rail) * m];
      const int64_t position = std::accumulate(heads, heads + m, int64_t{0});
      first = WritePieces(rail, [&](const Segment& piece) { return piece.origin == origin; }, position, pool, first);
    }
    const int64_t at_origin = here_[origin * m + rail];
    const int64_t rows = placed_[origin * m + rail] - at_origin;
    int64_t position = quota;
    for (int32_t k = 1; k < m; ++k) {
      const int32_t other = Around(rail + k) * m + rail;
      position -= k < shift ? 0 : placed_[other] - here_[other];
    }
    pool[first] = {position, at_origin, rows, origin, rail};
    return first + (rows > 0);
  }

  // What has the target `shift` behind the rail: one block of the head, and some pieces.
  int32_t WriteReceivedBy(int32_t rail, int32_t shift, Segment* pool, int32_t first) const {
    const int32_t m = rails();
    const int32_t target = Around(rail + shift);
    const int64_t* heads = &here_[static_cast<size_t>(rail) * m];
    int64_t position = 0;
    for (int32_t k = 1; k < m; ++k) position += k < shift ? heads[Around(rail + k)] : 0;
    pool[first] = {position, 0, heads[target], rail, target};
    first += heads[target] > 0;
    if (first_piece_[rail] == first_piece_[rail + 1]) return first;
    position = std::accumulate(heads, heads + m, int64_t{0});
    return WritePieces(rail, [&](const Segment& piece) { return piece.target == target; }, position, pool, first);
  }

  template <typename Wanted>
  int32_t WritePieces(int32_t rail, Wanted wanted, int64_t position, Segment* pool, int32_t first) const {
    for (int32_t i = first_piece_[rail]; i < first_piece_[rail + 1]; ++i) {
      pool[first] = pieces_[i];
      pool[first].position = position;
      position += pieces_[i].rows;
      first += wanted(pieces_[i]);
    }
    return first;
  }

  int32_t rails_;
  int32_t words_;
  // Index i * m + j. Rows of the block i -> j that lie on one of its ends; a diagonal block has one end.
  std::vector<int64_t> placed_;
  // Those of them that lie on their origin, 0 for a diagonal block. The search counts in what lies on rail i of the
  // opposite block as well: all that could move to j. Rows that left their origin return before others leave, so of
  // two opposite blocks one at most has rows on its target, and the smaller of the two numbers is on its origin.
  std::vector<int64_t> here_;
  int64_t surplus_rows_ = 0;      // of all of surplus_
  std::vector<int64_t> surplus_;  // rows of the diagonal block above the quota
  std::vector<int64_t> excess_;   // rows on a rail above its quota
  std::vector<int64_t> space_;    // rows that a rail has below it

  // Sets of rails, as bits: from rail i rows can move to the rails of movable_[i].
  std::vector<uint64_t> movable_;
  std::vector<uint64_t> over_;
  std::vector<uint64_t> room_;
  std::vector<uint64_t> unseen_;
  std::vector<int32_t> parent_;
  std::vector<int32_t> queue_;

  std::vector<Segment> pieces_;       // leftover, ordered by rail
  std::vector<int32_t> first_piece_;  // per rail, and the end
};

}  // namespace

// Small plans spend most of their time here, hence with a number of rails that the compiler knows where it is the usual
// one.
std::unique_ptr<RailFiller> MakeBalancer(int32_t rails) {
  if (rails == 8) return std::make_unique<Balancer<8>>(rails);
  return std::make_unique<Balancer<0>>(rails);
}

std::shared_ptr<Tiles> MakeBalancedTiles(const Topology& topology) {
  return std::make_shared<Tiles>(topology, MakeBalancer(RailsOf(topology)));
}

}  // namespace fastjax::planner
