#include "planner/schedule.h"

#include <algorithm>

namespace fastjax::planner {
namespace {

void AppendWhole(const int64_t* traffic, int32_t devices, Phase phase, int32_t stage, int32_t src, int32_t dst,
                 TransferBuffer* out) {
  const int64_t rows = traffic[static_cast<int64_t>(src) * devices + dst];
  if (rows == 0) return;
  out->Push({phase, stage, src, dst, src, dst, 0, rows, Transfer::kInPlace, Transfer::kInPlace});
}

// Returns the number modulo the count; the number is below twice the count.
int32_t Wrapped(int32_t number, int32_t count) { return number < count ? number : number - count; }

}  // namespace

void AppendLocal(const Topology& topology, const int64_t* traffic, int32_t device, TransferBuffer* out) {
  const int32_t m = topology.devices_per_server;
  const int32_t devices = topology.devices();
  if (device == kEveryDevice) {
    for (int32_t src = 0; src < devices; ++src) {
      const int32_t first = src - topology.local_of(src);
      for (int32_t dst = first; dst < first + m; ++dst) AppendWhole(traffic, devices, Phase::kLocal, -1, src, dst, out);
    }
    return;
  }
  const int32_t first = device - topology.local_of(device);
  for (int32_t src = first; src < first + m; ++src) {
    if (src != device) {
      AppendWhole(traffic, devices, Phase::kLocal, -1, src, device, out);
      continue;
    }
    for (int32_t dst = first; dst < first + m; ++dst) AppendWhole(traffic, devices, Phase::kLocal, -1, src, dst, out);
  }
}

void AppendShift(const Topology& topology, const int64_t* traffic, int32_t shift, int32_t stage, int32_t device,
                 TransferBuffer* out) {
  const int32_t devices = topology.devices();
  const auto append = [&](int32_t src) {
    const int32_t dst = Wrapped(src + shift, devices);
    if (topology.server_of(src) == topology.server_of(dst)) return;
    AppendWhole(traffic, devices, Phase::kScaleOut, stage, src, dst, out);
  };
  if (device == kEveryDevice) {
    for (int32_t src = 0; src < devices; ++src) append(src);
    return;
  }
  const int32_t sender = Wrapped(device - shift + devices, devices);
  append(std::min(sender, device));
  append(std::max(sender, device));
}

void AppendRound(const Topology& topology, const int64_t* traffic, int32_t server_shift, int32_t local_shift,
                 int32_t device, TransferBuffer* out) {
  const int32_t n = topology.servers;
  const int32_t m = topology.devices_per_server;
  const auto away = [&](int32_t from, int32_t servers, int32_t locals) {
    return topology.device(Wrapped(topology.server_of(from) + servers, n),
                           Wrapped(topology.local_of(from) + locals, m));
  };
  const auto append = [&](int32_t src) {
    AppendWhole(traffic, topology.devices(), Phase::kScaleOut, 0, src, away(src, server_shift, local_shift), out);
  };
  if (device == kEveryDevice) {
    for (int32_t src = 0; src < topology.devices(); ++src) append(src);
    return;
  }
  const int32_t sender = away(device, n - server_shift, m - local_shift);
  append(std::min(sender, device));
  append(std::max(sender, device));
}

}  // namespace fastjax::planner
