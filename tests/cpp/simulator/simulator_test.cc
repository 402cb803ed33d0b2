// Rates that are max-min fair, and programs of flows run to their end.
#include "simulator/simulator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "planner/planner.h"
#include "simulator/messages.h"
#include "simulator/program.h"
#include "simulator/schedule.h"
#include "simulator/sharing.h"
#include "support/check.h"
#include "support/traffic.h"
#include "support/transfers.h"

namespace fastjax::test {
namespace {

using planner::Phase;
using planner::Planner;
using planner::Scheduler;
using planner::Topology;
using planner::Transfer;
using simulator::Fabric;
using simulator::kNoLink;
using simulator::Program;
using simulator::Sharing;
using simulator::Simulator;
using simulator::Task;

constexpr double kClose = 1e-9;

int32_t Draw(std::mt19937* random, int32_t least, int32_t most) {
  return std::uniform_int_distribution<int32_t>(least, most)(*random);
}

Program DrawProgram(std::mt19937* random) {
  Program program;
  const int32_t links = Draw(random, 1, 8);
  for (int32_t link = 0; link < links; ++link) program.capacities.push_back(Draw(random, 1, 20));
  if (Draw(random, 0, 1) == 1) {
    program.incast_begin = Draw(random, 0, links - 1);
    program.incast_end = links;
    program.efficiencies = {1, 0.75, 0.5};
    program.whole_senders = Draw(random, 0, 1) == 1;
  }
  const int32_t tasks = Draw(random, 1, 30);
  for (int32_t i = 0; i < tasks; ++i) {
    Task task;
    const int32_t used = Draw(random, 1, std::min(links, 3));
    for (int32_t k = 0; k < used; ++k) {
      int32_t link;
      do {
        link = Draw(random, 0, links - 1);
      } while (std::find(task.links.begin(), task.links.end(), link) != task.links.end());
      task.links[static_cast<size_t>(k)] = link;
    }
    task.bytes = Draw(random, 1, 50);
    task.start_up = Draw(random, 0, 3);
    task.priority = static_cast<int8_t>(Draw(random, 0, simulator::kPriorities - 1));
    program.tasks.push_back(task);
  }
  return program;
}

// Nobody can get more but at the cost of somebody who has no more: each has a link that is full with those of its
// priority and before it, and where nobody of its priority gets more than it does.
TEST(RatesAreFair) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const Context context("round " + std::to_string(round));
    const Program program = DrawProgram(&random);
    std::vector<int32_t> all;
    for (int32_t i = 0; i < static_cast<int32_t>(program.tasks.size()); ++i) all.push_back(i);
    std::shuffle(all.begin(), all.end(), random);
    Sharing sharing(program);
    std::vector<double> rates;
    sharing.Share(all, &rates);
    const size_t links = program.capacities.size();
    std::vector<double> capacity(links), most(links * simulator::kPriorities, 0);
    std::vector<double> used(links * simulator::kPriorities, 0);  // by this priority and those before it
    std::vector<double> senders(links, 0), users(links, 0);
    std::set<std::pair<size_t, size_t>> met;  // first links, and where their tasks lead
    const auto for_each_link = [&](size_t i, auto visit) {
      for (const int32_t link : program.tasks[static_cast<size_t>(all[i])].links) {
        if (link != kNoLink) visit(static_cast<size_t>(link));
      }
    };
    for (size_t i = 0; i < all.size(); ++i) for_each_link(i, [&](size_t link) { ++users[link]; });
    for (size_t i = 0; i < all.size(); ++i) {
      const auto priority = static_cast<size_t>(program.tasks[static_cast<size_t>(all[i])].priority);
      const auto first = static_cast<size_t>(program.tasks[static_cast<size_t>(all[i])].links[0]);
      for_each_link(i, [&](size_t link) {
        const bool counts = link != first && (!program.whole_senders || met.insert({first, link}).second);
        if (counts) senders[link] += program.whole_senders ? 1 : 1 / users[first];
        for (size_t p = priority; p < simulator::kPriorities; ++p) used[link * simulator::kPriorities + p] += rates[i];
        double& top = most[link * simulator::kPriorities + priority];
        top = std::max(top, rates[i]);
      });
    }
    for (size_t link = 0; link < links; ++link) {
      capacity[link] = program.capacities[link];
      if (program.has_incast(static_cast<int32_t>(link))) capacity[link] *= program.efficiency(senders[link]);
      CHECK_LE(used[link * simulator::kPriorities + simulator::kPriorities - 1], capacity[link] * (1 + kClose));
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const auto priority = static_cast<size_t>(program.tasks[static_cast<size_t>(all[i])].priority);
      bool held = false;
      for_each_link(i, [&](size_t link) {
        const size_t at = link * simulator::kPriorities + priority;
        held |= used[at] >= capacity[link] * (1 - kClose) && rates[i] >= most[at] - kClose * capacity[link];
      });
      CHECK(held);
    }
  }
}

// Every task is done, not before what it waits for and not faster than a link allows; the same whether it goes on for
// an event at a time or for all.
TEST(ProgramsEnd) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const Context context("round " + std::to_string(round));
    Program program = DrawProgram(&random);
    const auto tasks = static_cast<int32_t>(program.tasks.size());
    for (int32_t k = 0; k < tasks; ++k) {
      const int32_t before = Draw(&random, 0, tasks - 1), after = Draw(&random, 0, tasks - 1);
      if (before < after) program.edges.push_back({before, after});
      if (Draw(&random, 0, 9) == 0) program.tasks[static_cast<size_t>(k)].bytes = 0;
    }
    Simulator at_once(program, 0), by_steps(program, 0);
    CHECK(at_once.Advance(1'000'000));
    while (!by_steps.Advance(1)) continue;
    CHECK(at_once.end() == by_steps.end());
    CHECK_EQ(at_once.done(), tasks);
    for (const simulator::Edge& edge : program.edges) {
      CHECK_GE(at_once.ready()[static_cast<size_t>(edge.after)], at_once.end()[static_cast<size_t>(edge.before)]);
    }
    const double last = *std::max_element(at_once.end().begin(), at_once.end().end());
    for (size_t link = 0; link < program.capacities.size(); ++link) {
      double bytes = 0;
      for (const Task& task : program.tasks) {
        const bool uses =
            std::find(task.links.begin(), task.links.end(), static_cast<int32_t>(link)) != task.links.end();
        if (uses) bytes += task.bytes;
      }
      CHECK_LE(bytes / program.capacities[link], last * (1 + kClose));
    }
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      CHECK(at_once.is_done(static_cast<int32_t>(i)));
      CHECK_GE(at_once.start()[i], at_once.ready()[i] + program.tasks[i].start_up - kClose);
      double slowest = 0;
      for (const int32_t link : program.tasks[i].links) {
        if (link == kNoLink) continue;
        slowest = std::max(slowest, program.tasks[i].bytes / program.capacities[static_cast<size_t>(link)]);
      }
      CHECK_GE(at_once.end()[i] - at_once.start()[i], slowest * (1 - kClose) - kClose);
    }
  }
}

TEST(WhatWaitsForItselfIsLeft) {
  Program program;
  program.capacities = {1};
  program.tasks.resize(3);
  program.tasks[2].bytes = 2;
  program.tasks[2].links[0] = 0;
  program.edges = {{0, 1}, {1, 0}};
  Simulator simulator(program, 0);
  CHECK(simulator.Advance(100));
  CHECK_EQ(simulator.done(), 1);
  CHECK(simulator.is_done(2));
  CHECK(!simulator.is_done(0));
  CHECK_EQ(simulator.end()[2], 2.0);
}

// A link that more than a thousand tasks share, the last hundred of which begin later. With a resolution, fewer
// moments are looked at; tasks end about when they do without, and all of them no earlier than the link allows.
TEST(LargePools) {
  std::mt19937 random(4);
  Program program;
  program.capacities = {1000};
  program.tasks.resize(1600);
  double bytes = 0;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    program.tasks[i].links[0] = 0;
    program.tasks[i].bytes = std::uniform_real_distribution<double>(900, 1100)(random);
    program.tasks[i].start_up = i < 1500 ? 0 : 100 + 0.1 * static_cast<double>(i - 1500);
    bytes += program.tasks[i].bytes;
  }
  const double busy = bytes / program.capacities[0];
  const auto run = [](Simulator* simulator) {
    int64_t events = 1;
    while (!simulator->Advance(1)) ++events;
    return events;
  };
  constexpr double kResolution = 0.01;
  Simulator exact(program, 0), coarse(program, kResolution);
  const int64_t exact_events = run(&exact);
  CHECK_LT(run(&coarse), exact_events - 500);  // the ends for as long as there are 1,024 tasks
  CHECK_EQ(coarse.done(), static_cast<int64_t>(program.tasks.size()));
  const double last = *std::max_element(exact.end().begin(), exact.end().end());
  CHECK_LE(std::abs(last - busy), kClose * busy);
  CHECK_GE(*std::max_element(coarse.end().begin(), coarse.end().end()), busy * (1 - kClose));
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    CHECK_EQ(coarse.start()[i], exact.start()[i]);
    CHECK_LE(std::abs(coarse.end()[i] - exact.end()[i]), 2 * kResolution * busy);
  }
}

TEST(LinksWithoutCapacity) {
  Program program;
  program.capacities = {1, 0};
  program.tasks.resize(1);
  program.tasks[0].links[0] = 1;
  std::string said;
  try {
    Simulator simulator(program, 0);
  } catch (const std::invalid_argument& error) {
    said = error.what();
  }
  CHECK_EQ(said, "link 1 has no capacity");
}

// Plans of all schedulers on fabrics of all kinds, whole and in pieces: all rows come, and nothing beats the bound.
TEST(Plans) {
  std::mt19937 random(3);
  std::vector<Fabric> fabrics(1);
  using simulator::Synchronization;
  for (const Synchronization synchronization :
       {Synchronization::kCredit, Synchronization::kFree, Synchronization::kBarrier, Synchronization::kWindow}) {
    fabrics.emplace_back();
    fabrics.back().synchronization = synchronization;
    fabrics.back().balance_first = true;
    fabrics.back().oversubscription = 2;
  }
  for (const auto& [servers, local] : {std::pair(1, 4), std::pair(3, 1), std::pair(4, 3), std::pair(6, 4)}) {
    const Topology topology = MakeTopology(servers, local);
    const Matrix traffic = Fill(topology, [&](int32_t, int32_t) { return Draw(&random, 0, 3) * Draw(&random, 0, 40); });
    for (const Scheduler scheduler : AllSchedulers()) {
      const Context context(std::to_string(servers) + " servers, scheduler " +
                            std::to_string(static_cast<int>(scheduler)));
      Planner plan(topology, scheduler, 4096);
      plan.Plan(traffic.data());
      const std::vector<Transfer> transfers = AllTransfers(&plan);
      for (const Fabric& fabric : fabrics) {
        const simulator::Messages messages = simulator::GatherMessages(transfers, fabric.balance_first ? 3 : 1);
        Simulator simulator(simulator::Schedule(messages, topology, 4096, fabric), fabric.balance_first ? 1e-3 : 0);
        CHECK(simulator.Advance(10'000'000));
        CHECK_EQ(simulator.done(), static_cast<int64_t>(simulator.end().size()));
        const double last = *std::max_element(simulator.end().begin(), simulator.end().end());
        CHECK_GE(last, plan.LowerBound() * (1 - kClose));
      }
    }
  }
}

}  // namespace
}  // namespace fastjax::test
