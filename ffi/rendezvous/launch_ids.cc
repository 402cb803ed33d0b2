#include "rendezvous/launch_ids.h"

#include <algorithm>

// XLA's run id is the sum of a start, which differs from executable to executable, and a count of its launches. A start
// is a hash of what was compiled. As a rule it is the same in every process, and equal run ids belong together, in
// whatever order devices arrive and whatever launches were left out. Starts differ where one process has compiled a
// program and another has read it from a cache; there, launches are counted from the first one that arrived. And one
// process may compile a program again that it has forgotten; then its launches are counted on from those before.

namespace fastjax {
namespace {

// The number of runs of a site that are remembered: far more than are ever in flight at once.
constexpr size_t kRunsKept = 1024;

// Starts are 32-bit hashes. Run ids that are nearer than this have one start: not every process took part in its first
// launch.
constexpr uint64_t kNear = uint64_t{1} << 16;

// Subtracts without overflow, whatever numbers another process has sent.
uint64_t Launch(const LaunchId& launch_id) {
  return static_cast<uint64_t>(launch_id.run_id) - static_cast<uint64_t>(launch_id.first_run);
}

bool Near(int64_t a, int64_t b) { return static_cast<uint64_t>(a) - static_cast<uint64_t>(b) + kNear < 2 * kNear; }

bool SameCopy(const LaunchId& a, const LaunchId& b) {
  // A process that has compiled a program once more, to inspect it, has copies that are never launched.
  return a.copies == b.copies ? a.copy == b.copy : a.copies == 1 || b.copies == 1;
}

}  // namespace

int64_t LaunchIds::Open(uint64_t call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Call& of = calls_[call];
  if (of.generations.empty() || !of.generations.back().before.empty()) {
    of.generations.emplace_back();
    of.generations.back().number = of.made++;
  }
  of.generations.back().sites.push_back(sites_);
  return sites_++;
}

void LaunchIds::Close(uint64_t call, int64_t site) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Generation>& generations = calls_[call].generations;
  for (Generation& generation : generations) {
    auto& sites = generation.sites;
    sites.erase(std::remove(sites.begin(), sites.end(), site), sites.end());
  }
  generations.erase(std::remove_if(generations.begin(), generations.end(),
                                   [](const Generation& generation) { return generation.sites.empty(); }),
                    generations.end());
  runs_.erase(runs_.lower_bound({site, 0}), runs_.lower_bound({site + 1, 0}));
}

LaunchId LaunchIds::Count(uint64_t call, int64_t site, int32_t group, int64_t run_id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  LaunchId launch_id;
  launch_id.run_id = run_id;
  Runs& runs = runs_.try_emplace({site, group}, Runs{run_id, {}}).first->second;
  launch_id.first_run = runs.first;
  launch_id.round = runs.rounds[run_id]++;
  // Forgets the youngest run: run ids may start anew, and a run older than all others would be forgotten at once.
  if (runs.rounds.size() > kRunsKept) {
    const auto oldest = runs.rounds.begin();
    runs.rounds.erase(oldest->first == run_id ? std::prev(runs.rounds.end()) : oldest);
  }
  Call& of = calls_[call];
  for (Generation& generation : of.generations) {
    const auto at = std::find(generation.sites.begin(), generation.sites.end(), site);
    if (at == generation.sites.end()) continue;
    launch_id.generation = generation.number;
    launch_id.before = generation.before.try_emplace(group, of.launches[group]).first->second;
    launch_id.copy = static_cast<int32_t>(at - generation.sites.begin());
    launch_id.copies = static_cast<int32_t>(generation.sites.size());
  }
  int64_t& launches = of.launches[group];
  launches = std::max(launches, launch_id.before + static_cast<int64_t>(Launch(launch_id)) + 1);
  return launch_id;
}

bool SameLaunch(const LaunchId& a, const LaunchId& b) {
  if (a.round != b.round || !SameCopy(a, b)) return false;
  if (a.generation == b.generation) {
    return Near(a.first_run, b.first_run) ? a.run_id == b.run_id : Launch(a) == Launch(b);
  }
  return static_cast<uint64_t>(a.before) + Launch(a) == static_cast<uint64_t>(b.before) + Launch(b);
}

}  // namespace fastjax
