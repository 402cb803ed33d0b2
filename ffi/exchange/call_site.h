// Declares CallSite: which devices take part in an operation, and how errors name it.
#ifndef FASTJAX_EXCHANGE_CALL_SITE_H_
#define FASTJAX_EXCHANGE_CALL_SITE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fastjax {

// One call site of one compiled program. Every list in it is the same in every process of the program.
struct CallSite {
  std::string operation;  // the public function's name, for messages
  std::string axis;       // as the user wrote it, for messages
  std::string program;    // the name of the function that was compiled
  std::string module;     // a hash of the lowered module, where one is known
  std::string shapes;     // of the operands
  int64_t channel = 0;    // distinguishes the exchanges of one program
  uint64_t settings = 0;  // a hash of what plans depend on besides the traffic
  int64_t timeout_ms = 0;
  int64_t experts = 0;  // where sizes are those of an MoE layer: how many it has, for messages
  // Where counts are gathered, and not planned for: parts of them are so many of servers, then those of experts.
  int64_t servers = 0;
  int32_t group_size = 0;
  std::vector<int32_t> group_of;      // by partition
  std::vector<int32_t> position_of;   // by partition: index inside its group, the index that offsets and sizes use
  std::vector<int32_t> rank_of;       // by position: server-major number, what plans use
  std::vector<int32_t> position_at;   // by rank
  std::vector<int32_t> partition_at;  // by group and position
  // By partition, where devices of several processes take part; empty where one process has all.
  std::vector<int32_t> process_of;
  std::vector<int32_t> rail_of;  // the device's number inside its process: chooses its NIC
  // As the topology has them: bytes/s of the fastest NIC, and what a stage takes to start. 0: not known.
  int64_t nic_bandwidth = 0;
  int64_t scale_out_latency_ns = 0;
  // What is told of it to those who ask for statistics.
  std::string name;  // where it is in the program
  std::string platform;
  std::vector<int64_t> topology;  // the words of planner::Topology
  int64_t scheduler = -1;         // where it plans: which one,
  int64_t plan_row_bytes = 0;     // and for rows of so many bytes
  int64_t tokens = 0;             // of a layer of experts: a device's tokens,
  int64_t top_k = 0;              // and the experts that each chooses

  bool spans_processes() const { return !process_of.empty(); }
  int32_t partition(int32_t group, int32_t position) const { return partition_at[group * group_size + position]; }
  int32_t partitions() const { return static_cast<int32_t>(group_of.size()); }
  int32_t groups() const { return group_size == 0 ? 0 : partitions() / group_size; }

  // "device 3" or, where the axis has several groups, "device 3 of group 1".
  std::string DeviceName(int32_t group, int32_t position) const {
    const std::string of_group = groups() > 1 ? " of group " + std::to_string(group) : "";
    return "device " + std::to_string(position) + of_group;
  }
  // "fast_ragged_all_to_all over axis 'x' (channel 1): "
  std::string Prefix() const {
    return operation + " over axis " + axis + " (channel " + std::to_string(channel) + "): ";
  }
};

}  // namespace fastjax

#endif  // FASTJAX_EXCHANGE_CALL_SITE_H_
