#include "planner/schedule.h"

namespace fastjax::planner {
namespace {

void AppendWhole(const int64_t* traffic, int32_t devices, Phase phase, int32_t stage, int32_t src, int32_t dst,
                 TransferBuffer* out) {
  const int64_t rows = traffic[static_cast<int64_t>(src) * devices + dst];
  if (rows == 0) return;
  out->Push({phase, stage, src, dst, src, dst, 0, rows, Transfer::kInPlace, Transfer::kInPlace});
}

}  // namespace

void AppendLocal(const Topology& topology, const int64_t* traffic, int32_t device, TransferBuffer* out) {
  const int32_t m = topology.devices_per_server;
  const int32_t devices = topology.devices();
  const bool every = device == kEveryDevice;
  const int32_t begin = every ? 0 : device - topology.local_of(device);
  const int32_t end = every ? devices : begin + m;
  for (int32_t src = begin; src < end; ++src) {
    const bool to_all = every || src == device;
    const int32_t first = to_all ? src - topology.local_of(src) : device;
    const int32_t last = to_all ? first + m - 1 : device;
    for (int32_t dst = first; dst <= last; ++dst) AppendWhole(traffic, devices, Phase::kLocal, -1, src, dst, out);
  }
}

void AppendShift(const Topology& topology, const int64_t* traffic, int32_t shift, int32_t stage, int32_t device,
                 TransferBuffer* out) {
  const int32_t devices = topology.devices();
  ForEachSender(devices, device, Wrapped(device - shift + devices, devices), [&](int32_t src) {
    const int32_t dst = Wrapped(src + shift, devices);
    if (topology.server_of(src) == topology.server_of(dst)) return;
    AppendWhole(traffic, devices, Phase::kScaleOut, stage, src, dst, out);
  });
}

void AppendRound(const Topology& topology, const int64_t* traffic, int32_t server_shift, int32_t local_shift,
                 int32_t device, TransferBuffer* out) {
  const int32_t n = topology.servers;
  const int32_t m = topology.devices_per_server;
  const int32_t devices = topology.devices();
  const auto away = [&](int32_t from, int32_t servers, int32_t locals) {
    return topology.device(Wrapped(topology.server_of(from) + servers, n),
                           Wrapped(topology.local_of(from) + locals, m));
  };
  ForEachSender(devices, device, away(device, n - server_shift, m - local_shift), [&](int32_t src) {
    AppendWhole(traffic, devices, Phase::kScaleOut, 0, src, away(src, server_shift, local_shift), out);
  });
}

}  // namespace fastjax::planner
