// Carries out steps on paper, in any order that their dependencies allow. Shares no code with what made them.
#ifndef FASTJAX_TESTS_CPP_EXECUTION_LOWERING_REPLAY_H_
#define FASTJAX_TESTS_CPP_EXECUTION_LOWERING_REPLAY_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "exchange/group_traffic.h"
#include "execution/lowering.h"
#include "lowering_rig.h"
#include "planner/transfer.h"
#include "support/check.h"

namespace fastjax::test {

// A row of the exchange: of block (origin -> target), the so-many-th.
using Row = std::tuple<int32_t, int32_t, int64_t>;

// What is where while an exchange is replayed. Knows of transfers only what their fields say.
class Replay {
 public:
  // Reads what a transfer moves. False if some of it is not there yet.
  bool Read(const planner::Transfer& transfer, std::vector<Row>* rows) const {
    for (int64_t i = 0; i < transfer.rows; ++i) {
      const Row row{transfer.origin, transfer.target, transfer.first_row + i};
      if (transfer.src_row == planner::Transfer::kInPlace) {
        if (transfer.src != transfer.origin) return false;
      } else {
        const auto found = staged_.find({transfer.src, transfer.src_row + i});
        if (found == staged_.end() || found->second != row) return false;
      }
      rows->push_back(row);
    }
    return true;
  }

  void Write(const planner::Transfer& transfer, const std::vector<Row>& rows, size_t first) {
    for (int64_t i = 0; i < transfer.rows; ++i) {
      const Row& row = rows[first + static_cast<size_t>(i)];
      if (transfer.dst_row == planner::Transfer::kInPlace) {
        CHECK_EQ(transfer.dst, std::get<1>(row));
        ++arrived_[row];
      } else {
        staged_[{transfer.dst, transfer.dst_row + i}] = row;
      }
    }
  }

  void CheckAllArrived(int32_t devices, const GroupTraffic& traffic) const {
    size_t rows = 0;
    for (int32_t origin = 0; origin < devices; ++origin) {
      for (int32_t target = 0; target < devices; ++target) {
        for (int64_t at = 0; at < traffic.rows(origin, target); ++at, ++rows) {
          const auto found = arrived_.find({origin, target, at});
          CHECK(found != arrived_.end() && found->second == 1);
        }
      }
    }
    CHECK_EQ(arrived_.size(), rows);
  }

 private:
  std::map<std::pair<int32_t, int64_t>, Row> staged_;  // by device and row
  std::map<Row, int32_t> arrived_;
};

// What both ends of a message know of it.
using MessageKey =
    std::tuple<int32_t, int32_t, planner::Phase, int32_t>;  // sender, receiver, phase and stage of the plan

inline MessageKey KeyOf(const Lowering& lowering, const Step& step) {
  const bool sends = step.action == Action::kSend;
  return {sends ? step.here : step.peer, sends ? step.peer : step.here, step.phase,
          lowering.stages()[static_cast<size_t>(step.stage)]};
}

inline int32_t PlanPipelineStep(const Lowering& lowering, const Step& step) {
  return lowering.pipeline_steps()[static_cast<size_t>(step.pipeline_step)];
}

// The transfers of both ends name the same rows, in the same order, though they need not be cut alike.
inline std::vector<Row> RowsOf(const Lowering& lowering, const Step& step) {
  std::vector<Row> rows;
  for (const planner::Transfer& transfer : lowering.TransfersOf(step)) {
    for (int64_t i = 0; i < transfer.rows; ++i) {
      rows.emplace_back(transfer.origin, transfer.target, transfer.first_row + i);
    }
  }
  return rows;
}

// A step of some process.
struct Located {
  Side* side;
  size_t index;
  const Step& step() const { return side->lowering.steps()[index]; }
};

// Reads by the sender's transfers and writes by the receiver's, as a message does.
inline void Move(const Located& from, const Located& to, Replay* replay) {
  std::vector<Row> rows;
  for (const planner::Transfer& transfer : from.side->lowering.TransfersOf(from.step()))
    CHECK(replay->Read(transfer, &rows));
  size_t first = 0;
  for (const planner::Transfer& transfer : to.side->lowering.TransfersOf(to.step())) {
    if (first + static_cast<size_t>(transfer.rows) > rows.size()) break;
    replay->Write(transfer, rows, first);
    first += static_cast<size_t>(transfer.rows);
  }
  CHECK_EQ(first, rows.size());
}

// The steps of all processes.
struct Program {
  explicit Program(const Sides& sides) {
    for (const auto& side : sides) {
      for (size_t i = 0; i < side->lowering.steps().size(); ++i) {
        const Located located{side.get(), i};
        if (located.step().action == Action::kReceive) {
          receivers.emplace(KeyOf(side->lowering, located.step()), located);
        } else {
          movers.push_back(located);
        }
      }
    }
  }
  // The step that writes what a copy or a send reads.
  Located WriterOf(const Located& from) const {
    return from.step().action == Action::kSend ? receivers.at(KeyOf(from.side->lowering, from.step())) : from;
  }

  std::map<MessageKey, Located> receivers;
  std::vector<Located> movers;  // copies and sends
};

// Any order that gates allow: of all steps that may begin, one at random.
inline void ReplayByGates(Setting* setting, const Sides& sides) {
  Replay replay;
  std::map<Side*, std::vector<int32_t>> missing;
  for (const auto& side : sides) missing[side.get()] = side->lowering.gates();
  const Program program(sides);
  for (const auto& [key, located] : program.receivers) CHECK_EQ(located.step().waits, -1);
  const auto end = [&](const Located& located) {
    const int32_t gate = located.step().opens;
    if (gate >= 0) CHECK(missing[located.side][static_cast<size_t>(gate)]-- > 0);
  };
  std::vector<Located> left = program.movers;
  std::shuffle(left.begin(), left.end(), setting->random);
  while (!left.empty()) {
    const auto ready = std::find_if(left.begin(), left.end(), [&](const Located& located) {
      const int32_t gate = located.step().waits;
      return gate < 0 || missing[located.side][static_cast<size_t>(gate)] == 0;
    });
    if (!CHECK(ready != left.end())) return;
    const Located from = *ready;
    left.erase(ready);
    const Located to = program.WriterOf(from);
    Move(from, to, &replay);
    end(from);
    if (to.side != from.side || to.index != from.index) end(to);
  }
  for (const auto& [side, gates] : missing) {
    CHECK(std::all_of(gates.begin(), gates.end(), [](int32_t steps) { return steps == 0; }));
  }
  replay.CheckAllArrived(setting->site->group_size, setting->traffic);
}

// All processes go from pipeline step to pipeline step together: what one of them reads was written in those before.
inline void ReplayByPipelineSteps(Setting* setting, const Sides& sides) {
  Replay replay;
  const Program program(sides);
  std::map<int32_t, std::vector<Located>> all;
  for (const Located& from : program.movers) all[PlanPipelineStep(from.side->lowering, from.step())].push_back(from);
  for (auto& [pipeline_step, steps] : all) {
    const Replay before = replay;
    std::shuffle(steps.begin(), steps.end(), setting->random);
    for (const Located& from : steps) {
      std::vector<Row> rows;
      for (const planner::Transfer& transfer : from.side->lowering.TransfersOf(from.step())) {
        CHECK(before.Read(transfer, &rows));
      }
      Move(from, program.WriterOf(from), &replay);
    }
  }
  replay.CheckAllArrived(setting->site->group_size, setting->traffic);
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_EXECUTION_LOWERING_REPLAY_H_
