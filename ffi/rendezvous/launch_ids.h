// Declares LaunchIds, which numbers the launches of call sites, so that processes agree on which of their launches
// belong together.
#ifndef FASTJAX_RENDEZVOUS_LAUNCH_IDS_H_
#define FASTJAX_RENDEZVOUS_LAUNCH_IDS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "rendezvous/process_metadata.h"

namespace fastjax {

// Thread-safe.
class LaunchIds {
 public:
  // Registers a call site. `call` is the same for sites that differ only in their executable or their place in it.
  // Returns the site's number, which the other methods take.
  int64_t Open(uint64_t call);
  void Close(uint64_t call, int64_t site);

  // Returns the next launch id of the group at this site, in this run.
  LaunchId Count(uint64_t call, int64_t site, int32_t group, int64_t run_id);

 private:
  // Sites that were registered before any of them was launched. As a rule they are of one executable.
  struct Generation {
    int64_t number = 0;
    std::vector<int64_t> sites;
    std::map<int32_t, int64_t> before;  // by group, once it has been launched: launches of older generations
  };
  struct Call {
    std::map<int32_t, int64_t> launches;  // by group; they are counted on when sites are gone
    std::vector<Generation> generations;
    int64_t made = 0;
  };
  // The launches of a group at a site.
  struct Runs {
    int64_t first = 0;
    std::map<int64_t, int32_t> rounds;  // by run
  };

  std::mutex mutex_;
  int64_t sites_ = 0;
  std::map<uint64_t, Call> calls_;
  std::map<std::pair<int64_t, int32_t>, Runs> runs_;  // by site and group
};

// Whether the ids that two processes gave to a launch are ids of the same launch.
bool SameLaunch(const LaunchId& a, const LaunchId& b);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_LAUNCH_IDS_H_
