#include "planner/cost.h"

#include <algorithm>

namespace fastjax::planner {

double LowerBoundSeconds(const Topology& topology, int64_t row_bytes, const int64_t* traffic) {
  const int32_t devices = topology.devices();
  int64_t server_rows = 0;
  int64_t device_rows = 0;
  for (int32_t server = 0; server < topology.servers; ++server) {
    int64_t server_leaving = 0;
    int64_t server_entering = 0;
    for (int32_t local = 0; local < topology.devices_per_server; ++local) {
      const int32_t device = topology.device(server, local);
      int64_t leaving = 0;
      int64_t entering = 0;
      for (int32_t peer = 0; peer < devices; ++peer) {
        if (peer == device) continue;
        const int64_t out = traffic[static_cast<int64_t>(device) * devices + peer];
        const int64_t in = traffic[static_cast<int64_t>(peer) * devices + device];
        leaving += out;
        entering += in;
        if (topology.server_of(peer) == server) continue;
        server_leaving += out;
        server_entering += in;
      }
      device_rows = std::max({device_rows, leaving, entering});
    }
    server_rows = std::max({server_rows, server_leaving, server_entering});
  }
  const double scale_up = static_cast<double>(topology.scale_up_bandwidth);
  const double scale_out = static_cast<double>(topology.scale_out_bandwidth);
  const double by_server = static_cast<double>(server_rows) / topology.devices_per_server / scale_out;
  const double by_device = static_cast<double>(device_rows) / (scale_up + scale_out);
  return static_cast<double>(row_bytes) * std::max(by_server, by_device);
}

CostModel::CostModel(const Topology& topology, int64_t row_bytes)
    : topology_(topology),
      row_bytes_(static_cast<double>(row_bytes)),
      scale_up_latency_(static_cast<double>(topology.scale_up_latency_ns) * 1e-9),
      scale_out_latency_(static_cast<double>(topology.scale_out_latency_ns) * 1e-9) {
  local_.devices.resize(topology.devices());
  for (Step& step : scale_up_) step.devices.resize(topology.devices());
  for (Step& step : scale_out_) step.devices.resize(topology.devices());
}

double CostModel::Seconds(Execution execution, TransferRange transfers) {
  Clear(&local_);
  for (Step& step : scale_up_) Clear(&step);
  for (Step& step : scale_out_) Clear(&step);
  return execution == Execution::kAtOnce ? AtOnce(transfers) : Staged(transfers);
}

void CostModel::Clear(Step* step) {
  std::fill(step->devices.begin(), step->devices.end(), Load());
  step->used = false;
}

void CostModel::Add(const Transfer& transfer, Step* step) {
  if (transfer.src == transfer.dst) return;
  step->used = true;
  Load& src = step->devices[transfer.src];
  src.sent_rows += transfer.rows;
  ++src.sends;
  Load& dst = step->devices[transfer.dst];
  dst.received_rows += transfer.rows;
  ++dst.receives;
}

double CostModel::Busiest(const Step& step, double bandwidth) const {
  int64_t rows = 0;
  for (const Load& load : step.devices) rows = std::max({rows, load.sent_rows, load.received_rows});
  return static_cast<double>(rows) * row_bytes_ / bandwidth;
}

double CostModel::BusiestWithStartups(const Step& step, double bandwidth, double latency) const {
  double busiest = 0;
  for (const Load& load : step.devices) {
    const double rows = static_cast<double>(std::max(load.sent_rows, load.received_rows));
    const double startups = static_cast<double>(std::max(load.sends, load.receives));
    busiest = std::max(busiest, rows * row_bytes_ / bandwidth + startups * latency);
  }
  return busiest;
}

double CostModel::AtOnce(TransferRange transfers) {
  for (const Transfer& transfer : transfers) {
    Add(transfer, transfer.phase == Phase::kScaleOut ? &scale_out_[0] : &local_);
  }
  const double scale_up = static_cast<double>(topology_.scale_up_bandwidth);
  const double scale_out = static_cast<double>(topology_.scale_out_bandwidth);
  return std::max(BusiestWithStartups(local_, scale_up, scale_up_latency_),
                  BusiestWithStartups(scale_out_[0], scale_out, scale_out_latency_));
}

double CostModel::Staged(TransferRange transfers) {
  seconds_ = 0;
  idle_scale_up_ = 0;
  int64_t stage = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.phase == Phase::kLocal) {
      Add(transfer, &local_);
      continue;
    }
    for (; stage < transfer.stage; ++stage) Finish(stage);
    const int64_t step = stage + static_cast<int64_t>(transfer.phase) - static_cast<int64_t>(Phase::kBalance);
    Add(transfer, transfer.phase == Phase::kScaleOut ? &scale_out_[step % 3] : &scale_up_[step % 3]);
  }
  for (int64_t last = stage + 3; stage < last; ++stage) Finish(stage);
  if (!local_.used) return seconds_;
  const double scale_up = static_cast<double>(topology_.scale_up_bandwidth);
  const double local = Busiest(local_, scale_up) + scale_up_latency_;
  return seconds_ + std::max(local - idle_scale_up_, 0.0);
}

void CostModel::Finish(int64_t step) {
  Step* up = &scale_up_[step % 3];
  Step* out = &scale_out_[step % 3];
  double up_seconds = 0;
  double out_seconds = 0;
  if (up->used) {
    up_seconds = Busiest(*up, static_cast<double>(topology_.scale_up_bandwidth)) + scale_up_latency_;
  }
  if (out->used) {
    out_seconds = Busiest(*out, static_cast<double>(topology_.scale_out_bandwidth)) + scale_out_latency_;
  }
  seconds_ += std::max(up_seconds, out_seconds);
  idle_scale_up_ += std::max(out_seconds - up_seconds, 0.0);
  Clear(up);
  Clear(out);
}

}  // namespace fastjax::planner
