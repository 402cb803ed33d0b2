#include "rendezvous/launch_ids.h"

#include <cstddef>
#include <iterator>

// XLA's run id is the sum, in 32 bits, of a start and the number of earlier launches of the executable. The start is a
// hash of what was compiled. It is the same in processes that have compiled a module alike, and another one where a
// process has read it from a cache. So launches are numbered from the start. The start of an executable that somebody
// else than JAX's jit has made is not known; of two of those, equal run ids prove the same start.

namespace fastjax {
namespace {

// The number of runs of a site that are remembered: far more than are ever in flight at once.
constexpr size_t kRunsKept = 1024;

// Run ids that are nearer than this have one start, since starts are hashes.
constexpr uint32_t kNear = uint32_t{1} << 16;

}  // namespace

int64_t LaunchIds::Open(uint64_t call, const std::string& module) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Site& site = sites_[made_];
  site.module = module;
  site.copy = copies_[call]++;
  return made_++;
}

void LaunchIds::Close(int64_t site) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sites_.erase(site);
}

void LaunchIds::CountFrom(const std::string& module, uint32_t start) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [number, site] : sites_) {
    if (site.module == module && !site.start.has_value() && !site.launched) site.start = start;
  }
}

LaunchId LaunchIds::Count(int64_t site, int32_t group, int64_t run_id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Site& of = sites_.at(site);
  of.launched = true;
  std::map<int64_t, int32_t>& repetitions = of.repetitions[group];
  LaunchId launch_id;
  launch_id.number = static_cast<uint32_t>(run_id) - of.start.value_or(0);
  launch_id.counted = of.start.has_value() ? 1 : 0;
  launch_id.copy = of.copy;
  launch_id.repetition = repetitions[run_id]++;
  // Forgets the youngest run: run ids may start anew, and a run older than all others would be forgotten at once.
  if (repetitions.size() > kRunsKept) {
    const auto oldest = repetitions.begin();
    repetitions.erase(oldest->first == run_id ? std::prev(repetitions.end()) : oldest);
  }
  return launch_id;
}

bool MayBeSame(const LaunchId& a, const LaunchId& b) {
  if (a.copy != b.copy || a.repetition != b.repetition) return false;
  const bool one_start = a.counted == b.counted && (a.counted != 0 || a.number - b.number + kNear < 2 * kNear);
  return !one_start || a.number == b.number;
}

}  // namespace fastjax
