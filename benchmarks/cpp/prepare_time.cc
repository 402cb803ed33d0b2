// Microseconds of processor time that the host takes to prepare an exchange before rows move: sizes and offsets are
// checked, and the plans of all devices become copies, or messages. With the plan given by stage tables, kept from an
// earlier exchange, and made.
//
//   prepare_time [--rounds 15] [--times 0] [--devices 8] [--way given] [--json FILE]
#include <ctime>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "backends/memory/job_builder.h"
#include "backends/network/message_schedule.h"
#include "exchange_case.h"
#include "execution/prepared.h"
#include "json.h"
#include "planner/table.h"
#include "spread.h"
#include "workload.h"

namespace fastjax::bench {
namespace {

constexpr const char* kUsage = "prepare_time [--rounds 15] [--times 0] [--devices 8] [--way given] [--json FILE]";
constexpr double kMeanRows = 256;
constexpr int64_t kRoundNanoseconds = 50'000'000;

enum class Way : int32_t { kGiven, kKept, kMade, kNetwork };
constexpr const char* kWays[] = {"given", "kept", "made", "network"};

struct Options {
  int64_t rounds = 15;
  int64_t times = 0;    // a round; 0: as many as take kRoundNanoseconds
  int64_t devices = 0;  // 0: all
  std::string way;      // empty: all
  std::string json;
};

struct Result {
  int32_t devices;
  Way way;
  int64_t entries;
  Spread microseconds;
};

int64_t ProcessorNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "prepare_time: %s\n", status.message.c_str());
  std::exit(1);
}

// What one process does again and again: all devices are its own, or, by network, those of the first server.
class Preparation {
 public:
  Preparation(const ExchangeCase& exchange, Way way) : exchange_(exchange), way_(way), args_(exchange.args()) {
    ranks_.resize(args_.size());
    std::iota(ranks_.begin(), ranks_.end(), 0);
    if (way == Way::kKept || way == Way::kMade) options_.plan = exchange.Slices(way == Way::kMade);
    if (way == Way::kNetwork) LeaveToOthers();
  }

  void Run() {
    bool alike = true;
    Launch launch;
    const CallSite& site = exchange_.site();
    Require(prepared_.Load(site, 0, args_, options_, ranks_, &alike, &launch));
    if (way_ == Way::kNetwork) {
      Require(schedule_.Build(site, 0, 0, args_, prepared_.plans(), prepared_.traffic()));
      schedule_.Release();
    } else {
      Require(builder_.Build(site, args_, prepared_.plans(), prepared_.traffic()));
      builder_.Release();
    }
  }

  // Of the stage tables.
  int64_t entries() const {
    return std::accumulate(ranks_.begin(), ranks_.end(), int64_t{0}, [this](int64_t sum, int32_t rank) {
      return sum + planner::TableView(args_[static_cast<size_t>(rank)].table).entries();
    });
  }

 private:
  void LeaveToOthers() {
    ranks_.resize(static_cast<size_t>(exchange_.topology().devices_per_server));
    for (size_t i = ranks_.size(); i < args_.size(); ++i) {
      args_[i].plan_hash = planner::TableView(args_[i].table).plan_hash();
      args_[i].table = nullptr;
      args_[i].source = nullptr;
      args_[i].destination = nullptr;
    }
  }

  const ExchangeCase& exchange_;
  const Way way_;
  std::vector<ExchangeArgs> args_;
  std::vector<int32_t> ranks_;
  ExchangeOptions options_;
  Prepared prepared_;
  memory::JobBuilder builder_;
  network::MessageSchedule schedule_;
};

double MicrosecondsOf(Preparation* preparation, int64_t times) {
  const int64_t start = ProcessorNanoseconds();
  for (int64_t i = 0; i < times; ++i) preparation->Run();
  return static_cast<double>(ProcessorNanoseconds() - start) / 1e3 / static_cast<double>(times);
}

Result Measure(const ExchangeCase& exchange, Way way, int64_t rounds, int64_t times) {
  Preparation preparation(exchange, way);
  preparation.Run();
  if (times == 0) {
    const double once = MicrosecondsOf(&preparation, 2);
    times = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(kRoundNanoseconds) / 1e3 / once));
  }
  std::vector<double> microseconds;
  for (int64_t round = 0; round < rounds; ++round) microseconds.push_back(MicrosecondsOf(&preparation, times));
  return {exchange.topology().devices(), way, preparation.entries(), MakeSpread(microseconds)};
}

void Print(const Result& result) {
  std::printf("%7d %8s %8lld %10.2f %10.2f %10.2f\n", result.devices, kWays[static_cast<int32_t>(result.way)],
              static_cast<long long>(result.entries), result.microseconds.min, result.microseconds.median,
              result.microseconds.max);
  std::fflush(stdout);
}

std::vector<Result> MeasureAll(const Options& options) {
  std::vector<Result> results;
  for (const int32_t devices : {8, 64, 320}) {
    if (options.devices != 0 && options.devices != devices) continue;
    planner::Topology topology;
    topology.devices_per_server = devices == 8 ? 4 : 8;
    topology.servers = devices / topology.devices_per_server;
    std::mt19937_64 random(7);
    const ExchangeCase exchange(topology, planner::Scheduler::kFast,
                                MakeTraffic(Skew::kExpert, devices, kMeanRows, &random));
    for (const Way way : {Way::kGiven, Way::kKept, Way::kMade, Way::kNetwork}) {
      if (!options.way.empty() && options.way != kWays[static_cast<int32_t>(way)]) continue;
      results.push_back(Measure(exchange, way, options.rounds, options.times));
      Print(results.back());
    }
  }
  return results;
}

bool WriteJson(const std::string& path, double load_at_start, const std::vector<Result>& results) {
  std::ofstream file(path);
  file << "{\n" << JsonHead("fastjax-prepare-time-1", load_at_start) << ",\n \"results\": [";
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& found = results[i];
    file << (i > 0 ? "," : "") << "\n  {\"devices\": " << found.devices
         << ", \"way\": " << Quoted(kWays[static_cast<int32_t>(found.way)]) << ", \"entries\": " << found.entries
         << ", \"processor_us\": " << Json(found.microseconds) << "}";
  }
  file << "\n ]\n}\n";
  return file.flush().good();
}

template <typename T>
bool ParsePositive(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value > 0;
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string_view value = argv[i + 1];
    bool good = false;
    if (name == "--rounds") good = ParsePositive(value, &options->rounds);
    if (name == "--times") good = ParsePositive(value, &options->times);
    if (name == "--devices") good = ParsePositive(value, &options->devices);
    if (name == "--way") good = !(options->way = value).empty();
    if (name == "--json") good = !(options->json = value).empty();
    if (!good) return false;
  }
  return argc % 2 == 1;
}

}  // namespace
}  // namespace fastjax::bench

int main(int argc, char** argv) {
  fastjax::bench::Options options;
  if (!fastjax::bench::Parse(argc, argv, &options)) {
    std::fprintf(stderr, "usage: %s\n", fastjax::bench::kUsage);
    return 2;
  }
  const double load = fastjax::bench::LoadAverage();
  std::printf("%7s %8s %8s %10s %10s %10s\n", "devices", "way", "entries", "min us", "median", "max");
  const std::vector<fastjax::bench::Result> results = fastjax::bench::MeasureAll(options);
  if (results.empty()) {
    std::fprintf(stderr, "prepare_time: nothing to measure\n");
    return 2;
  }
  if (!options.json.empty() && !fastjax::bench::WriteJson(options.json, load, results)) {
    std::fprintf(stderr, "prepare_time: cannot write %s\n", options.json.c_str());
    return 1;
  }
  return 0;
}
