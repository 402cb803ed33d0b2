// Declares LaunchIds, which numbers the launches of call sites, so that processes agree on which of their launches
// belong together.
#ifndef FASTJAX_RENDEZVOUS_LAUNCH_IDS_H_
#define FASTJAX_RENDEZVOUS_LAUNCH_IDS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "rendezvous/process_metadata.h"

namespace fastjax {

// Thread-safe.
class LaunchIds {
 public:
  // Registers a call site of an executable of a module, which is named by its fingerprint. `call` is the same for sites
  // that differ only in their executable or their place in it. Returns the site's number, which the other methods take.
  int64_t Open(uint64_t call, const std::string& module);
  void Close(int64_t site);

  // Says from where XLA counts the launches of an executable of a module: of those of its sites of which it has not
  // been said, and which have had no launch. An executable is made before it is launched, and ids of a site are of one
  // kind.
  void CountFrom(const std::string& module, uint32_t start);

  // Returns the next launch id of the group at this site, in this run.
  LaunchId Count(int64_t site, int32_t group, int64_t run_id);

 private:
  struct Site {
    std::string module;
    std::optional<uint32_t> start;
    bool launched = false;
    int32_t copy = 0;
    std::map<int32_t, std::map<int64_t, int32_t>> repetitions;  // by group and run
  };

  std::mutex mutex_;
  int64_t made_ = 0;
  std::map<uint64_t, int32_t> copies_;  // by call: how many sites it has had
  std::map<int64_t, Site> sites_;
};

// Whether nothing says that two ids of one call are ids of two launches: they are equal, or cannot be compared.
bool MayBeSame(const LaunchId& a, const LaunchId& b);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_LAUNCH_IDS_H_
