// What servers send to each other, one tile of the traffic matrix for each pair of them: sums over tiles, and how many
// rows each rail carries. Which rows those are is found when a device asks for them (rail_schedule.h).
#ifndef FASTJAX_PLANNER_TILES_H_
#define FASTJAX_PLANNER_TILES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "planner/pricing.h"
#include "planner/topology.h"

namespace fastjax::planner {

// Rows [first_row, first_row + rows) of the block origin -> target (local indices), at `position` of a rail's list.
struct Segment {
  int64_t position;
  int64_t first_row;
  int64_t rows;
  int32_t origin;
  int32_t target;
};

// One rail's list for one server pair: segments [first, end) of a pool, `rows` rows in all where it is listed whole.
struct Rail {
  int32_t first = 0;
  int32_t end = 0;
  int64_t rows = 0;
};

// The device that a tile is filled for: its local index, in the server that sends or in the one that receives.
struct Viewer {
  int32_t local;
  bool sends;
};

// A way of assigning a tile's rows to rails.
class RailFiller {
 public:
  virtual ~RailFiller() = default;

  // Segments that Fill needs of the pool at most, those that it only tries included.
  virtual int64_t max_segments() const = 0;
  // Whether Fill lists less for a viewer.
  virtual bool heeds_viewer() const { return false; }
  // Rows that a rail may get beyond its quota: 0 for those that keep to quotas.
  virtual int64_t slack_rows(int64_t /*tile_rows*/) const { return 0; }
  // tile[i * stride + j] rows go from local device i to local device j of the other server; quotas sum to theirs.
  // Writes rails[0, m) and the segments at pool[first...]; returns the end of them. For a viewer, rails other than its
  // own list only what starts, or ends, at it, if heeds_viewer.
  virtual int32_t Fill(const int64_t* tile, int64_t stride, const int64_t* quotas, const Viewer* viewer, Rail* rails,
                       Segment* pool, int32_t first) = 0;
};

// What a tile asks of the fabric inside one of its servers: rows of the busiest device, and how many of the tile's
// units they belong to.
struct TileWork {
  int64_t rows = 0;
  int64_t units = 0;
};

// Rails carry what needs no balance first and what needs no redistribution last.
struct TileLoad {
  TileWork balance;       // belongs to the last units
  TileWork redistribute;  // to the first
};

// How many rows of a tile each rail carries.
enum class Quotas {
  kEven,     // as even as can be, or in proportion to its NICs
  kOrigins,  // those of the device whose own it is, where all NICs work
};

// Rails that tiles are filled for: inside one server there is nothing to spread.
inline int32_t RailsOf(const Topology& topology) { return topology.servers == 1 ? 1 : topology.devices_per_server; }

class Tiles {
 public:
  Tiles(const Topology& topology, std::unique_ptr<RailFiller> filler, Quotas quotas = Quotas::kEven);

  void Plan(const int64_t* traffic);

  const Topology& topology() const { return topology_; }
  int32_t PairOf(int32_t source, int32_t target) const { return source * servers_ + target; }

  // By pair. A unit is what the fastest NIC of all moves in the time of one row; where all NICs are equal, a pair's
  // units are the rows on its fullest rail.
  const int64_t* units() const { return units_.data(); }
  int64_t sum(int32_t pair) const { return sums_[pair]; }
  const TileLoad& load(int32_t pair) const { return loads_[pair]; }
  // Whether plans count, by device, the rows sent to other servers and received from them.
  void CountRowsOfDevices(bool count) { counts_devices_ = count; }
  int64_t most_sent() const { return *std::max_element(sent_rows_.begin(), sent_rows_.end()); }
  int64_t most_received() const { return *std::max_element(received_rows_.begin(), received_rows_.end()); }
  // What servers do at most.
  struct Busiest {
    int64_t units = 0;         // sent or received
    int64_t peers = 0;         // servers that one sends to or receives from
    int64_t rows_of_pair = 0;  // that one sends to another
  };
  Busiest FindBusiest() const;
  // What devices do at most inside their servers, for all pairs, in rows.
  struct Inside {
    int64_t balance = 0;       // sent
    int64_t redistribute = 0;  // received
    // Units of all pairs, and those of them that come before any that need balance, or behind all that need
    // redistribution.
    Wide units = 0;
    Wide balanced_units = 0;
    Wide home_units = 0;
  };
  Inside FindInside() const;
  // No block has more rows: those of the fullest tile or, inside servers, of the device that has most.
  int64_t block_bound() const { return block_bound_; }
  // Rows of the busiest device that do not leave its server nor stay where they are.
  int64_t local_rows() const { return local_rows_; }

  // Rows of a rail's list that its pair's first `units` cover.
  int64_t PositionOf(int32_t pair, int64_t rail_rows, int64_t units) const;
  // Whether any row lies in the pair's units [begin, end), where NICs differ.
  bool AnyRows(int32_t source, int32_t target, int64_t begin, int64_t end) const;
  // Local index of the device that receives what `rail` of the source sends: the same, but where NICs have failed so
  // that no rail has two ends.
  int32_t ReceiverOf(int32_t source, int32_t target, int32_t rail) const {
    return crossed_.empty() || crossed_[PairOf(source, target)] == 0 ? rail : best_nic_[target];
  }

  // A device's staging holds what it sends, by target server, and behind it what it receives, by source server; a row
  // lies at its position in the rail's list. Rows that need no staging leave gaps, and a pair has as many on each rail:
  // like this both ends of a transfer know both its places without a look at any pair but their own.
  int64_t staging_rows(int32_t server) const { return staging_rows_[server]; }
  int64_t send_base(int32_t pair) const { return send_base_[pair]; }
  int64_t receive_base(int32_t pair) const { return receive_base_[pair]; }

  // Rows of the pair that each rail carries. `tile`: the pair's, in the traffic.
  void FillQuotas(int32_t source, int32_t target, const int64_t* tile, int64_t* quotas) const;
  RailFiller* filler() const { return filler_.get(); }

 private:
  void SetCrossed();
  template <int32_t kRails>
  void PlanServer(int32_t source);
  template <int32_t kRails>
  void SumTile(int32_t source, int32_t target);
  template <int32_t kRails>
  void SumInPairs(const int64_t* tile);
  template <int32_t kRails>
  void SetTile(int32_t source, int32_t target);
  template <int32_t kRails>
  void SetLoad(int32_t source, int32_t target, int64_t most);
  template <typename Rows, int32_t kRails>
  TileLoad LoadOf(int32_t source, int32_t target);
  void AddLocal();
  void SetStaging();

  template <int32_t kRails>
  void FillEvenQuotas(int32_t source, int32_t target, int64_t* quotas) const;
  void CountRowsOfNics(int32_t source, int32_t target);
  int64_t UnitsOfBusiestNic() const;
  void FillUnequalQuotas(int32_t source, int32_t target, int64_t* quotas) const;
  int64_t RateOf(int32_t source, int32_t target, int32_t rail) const;
  int64_t UnitsOf(int32_t source, int32_t target, const int64_t* quotas) const;

  Topology topology_;
  Quotas kind_;
  int32_t servers_;
  int32_t m_;
  int64_t fastest_nic_;
  int64_t slowest_nic_;  // that counts as such
  std::unique_ptr<RailFiller> filler_;
  const int64_t* traffic_ = nullptr;  // while it is planned

  std::vector<uint8_t> crossed_;  // by pair; empty where all NICs are equal, or rows cross from where they are
  std::vector<int32_t> best_nic_;

  bool counts_devices_ = false;
  std::vector<int64_t> sent_rows_;  // by device, to other servers
  std::vector<int64_t> received_rows_;
  std::vector<int64_t> nic_rows_;       // by device: sent, then received; where quotas are those of origins
  std::vector<int64_t> balanced_;       // by device: rows that it sends to balance its server's rails
  std::vector<int64_t> redistributed_;  // by device: rows that others in its server hand on to it
  std::vector<int64_t> sums_;           // by pair
  std::vector<int64_t> units_;
  std::vector<int64_t> most_rows_;  // the largest quota
  std::vector<TileLoad> loads_;
  std::vector<int64_t> send_base_;
  std::vector<int64_t> receive_base_;
  std::vector<int64_t> staging_rows_;  // by server
  int64_t block_bound_ = 0;
  int64_t local_rows_ = 0;

  // Sums of one tile, by local index.
  std::vector<int64_t> row_sums_;
  std::vector<int64_t> column_sums_;
  std::vector<int64_t> diagonal_;
  mutable std::vector<int64_t> quotas_;
  mutable std::vector<int32_t> rail_order_;
};

}  // namespace fastjax::planner

#endif  // FASTJAX_PLANNER_TILES_H_
