// Microseconds from a traffic matrix to one device's stage table, with a warm planner and another matrix every time.
// 8192 devices take gigabytes and a minute: name them to have them.
//
//   plan_time [--devices 32,64] [--json FILE]
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "json.h"
#include "planner/matchings.h"
#include "planner/planner.h"
#include "planner/table.h"

namespace fastjax::bench {
namespace {

using planner::Planner;
using planner::Topology;
using Random = std::mt19937_64;

constexpr int32_t kDevicesPerServer = 8;
constexpr planner::Scheduler kScheduler = planner::Scheduler::kFast;
constexpr int64_t kRowBytes = 4096;
constexpr double kMeanRows = 4096;  // of a pair, those of a device with itself included
constexpr double kExponent = 0.8;

// Shares that add up to `total`, in random order.
std::vector<double> Zipf(size_t count, double total, Random* random) {
  std::vector<double> shares(count);
  double sum = 0;
  for (size_t rank = 0; rank < count; ++rank) sum += shares[rank] = std::pow(static_cast<double>(rank + 1), -kExponent);
  for (double& share : shares) share *= total / sum;
  std::shuffle(shares.begin(), shares.end(), *random);
  return shares;
}

// From one draw: the sum of its four quarters, of mean 0 and variance 1.
double NearlyNormal(Random* random) {
  const uint64_t bits = (*random)();
  double sum = 0;
  for (int quarter = 0; quarter < 4; ++quarter) sum += static_cast<double>((bits >> (16 * quarter)) & 0xFFFF) / 65536;
  return (sum - 2) * std::sqrt(3.0);
}

// Pairs of devices have shares 1 / rank^0.8, ranks drawn at random: as in FAST.
void PairZipf(int32_t /*devices*/, Random* random, std::vector<int64_t>* traffic) {
  const std::vector<double> shares = Zipf(traffic->size(), kMeanRows * static_cast<double>(traffic->size()), random);
  std::transform(shares.begin(), shares.end(), traffic->begin(), [](double share) { return std::llround(share); });
}

// Equal shares, but for a jitter of a tenth, without which every stage would be the same.
void Uniform(int32_t /*devices*/, Random* random, std::vector<int64_t>* traffic) {
  for (int64_t& rows : *traffic) {
    rows = std::llround(kMeanRows * (0.9 + 0.2 * static_cast<double>((*random)() % 1024) / 1024));
  }
}

// Receivers have shares 1 / rank^0.8, ranks drawn at random, alike for all senders; every flow is drawn around its
// share with the variance of a count.
void Expert(int32_t devices, Random* random, std::vector<int64_t>* traffic) {
  const std::vector<double> shares = Zipf(devices, kMeanRows * devices, random);
  for (size_t pair = 0; pair < traffic->size(); ++pair) {
    const double share = shares[pair % devices];
    (*traffic)[pair] = std::max<int64_t>(std::llround(share + std::sqrt(share) * NearlyNormal(random)), 0);
  }
}

struct Skew {
  const char* name;
  void (*draw)(int32_t devices, Random* random, std::vector<int64_t>* traffic);  // row-major devices x devices
};
constexpr Skew kSkews[] = {{"pair-zipf 0.8", PairZipf}, {"uniform", Uniform}, {"expert 0.8", Expert}};

struct Effort {
  int32_t matrices;  // enough that none is still in the caches' fastest part, as far as memory allows
  int32_t plans;
};

Effort EffortFor(int32_t devices) {
  if (devices <= 64) return {16, 4000};
  if (devices <= 160) return {16, 800};
  if (devices <= 320) return {16, 240};
  if (devices <= 1024) return {4, 60};
  return {2, 6};
}

// The mean and the largest of a quantity that every matrix has.
struct Range {
  double mean = 0;
  double max = 0;

  void Add(double value, size_t count) {
    mean += value / static_cast<double>(count);
    max = std::max(max, value);
  }
};

struct Result {
  int32_t devices;
  const char* skew;
  Spread plan;      // from the matrix to one device's stage table
  Range matchings;  // before they are cut into stages
  Range stages;
};

// Another matrix and another device each time.
Result Run(int32_t devices, const Skew& skew) {
  Topology topology;
  topology.servers = devices / kDevicesPerServer;
  topology.devices_per_server = kDevicesPerServer;
  const auto [matrices, plans] = EffortFor(devices);
  Random random(devices);
  std::vector<std::vector<int64_t>> ring(matrices, std::vector<int64_t>(static_cast<size_t>(devices) * devices));
  for (std::vector<int64_t>& traffic : ring) skew.draw(devices, &random, &traffic);

  Result result = {devices, skew.name, {}, {}, {}};
  std::vector<int32_t> words(planner::TableWords(topology, kScheduler));
  Planner planner(topology, kScheduler, kRowBytes);
  std::vector<double> times;
  for (int32_t number = -matrices; number < plans; ++number) {
    const std::vector<int64_t>& traffic = ring[static_cast<size_t>(number + matrices) % ring.size()];
    const double time = MicrosecondsOf([&] {
      planner.Plan(traffic.data());
      if (!WriteTable(&planner, (number + matrices) % devices, words.data())) std::abort();
    });
    if (number >= 0) {
      times.push_back(time);
      continue;
    }
    // Of each matrix once, while all gets warm.
    const planner::MatchingList* const matchings = planner.matched().matchings;
    result.matchings.Add(matchings == nullptr ? planner.num_stages() : matchings->count(), ring.size());
    result.stages.Add(planner.num_stages(), ring.size());
  }
  result.plan = MakeSpread(std::move(times));
  return result;
}

struct Options {
  std::vector<int32_t> devices = {16, 32, 64, 96, 160, 320, 1024};
  std::string json;
};

bool ParseDevices(const std::string& text, std::vector<int32_t>* devices) {
  devices->clear();
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const char* const end = item.data() + item.size();
    int32_t count = 0;
    if (const auto [at, error] = std::from_chars(item.data(), end, count); error != std::errc() || at != end)
      return false;
    if (count < 2 * kDevicesPerServer || count % kDevicesPerServer != 0) return false;
    devices->push_back(count);
  }
  return !devices->empty();
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--devices" && ParseDevices(argv[i + 1], &options->devices)) continue;
    if (name != "--json" || *argv[i + 1] == '\0') return false;
    options->json = argv[i + 1];
  }
  return argc % 2 == 1;
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  constexpr std::string_view kKey = "model name";
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.compare(0, kKey.size(), kKey) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string Json(const Range& range) {
  return "{\"mean\": " + bench::Json(range.mean) + ", \"max\": " + bench::Json(range.max) + "}";
}

// In one line, so that versions of a record can be compared.
std::string Json(const Result& result) {
  std::ostringstream json;
  json << "  {\"devices\": " << result.devices << ", \"skew\": " << Quoted(result.skew)
       << ", \"planner\": {\"plan_us\": " << bench::Json(result.plan) << ", \"matchings\": " << Json(result.matchings)
       << ", \"stages\": " << Json(result.stages) << "}}";
  return json.str();
}

// Beside the results, what they were made on and with.
bool WriteJson(const std::string& path, double load_at_start, const std::vector<Result>& results) {
  std::ofstream file(path);
  file << "{\n \"schema\": \"fastjax-plan-time-3\",\n \"machine\": {\"cpu\": " << Quoted(CpuModel())
       << ", \"usable_cores\": " << std::thread::hardware_concurrency()
       << ", \"load_average\": " << bench::Json(load_at_start)
       << "},\n \"versions\": {\"fastjax\": " << Quoted(FASTJAX_VERSION)
       << ", \"compiler\": " << Quoted(FASTJAX_COMPILER)
       << "},\n \"scheduler\": " << Quoted(std::string(planner::NameOf(kScheduler))) << ", \"row_bytes\": " << kRowBytes
       << ", \"devices_per_server\": " << kDevicesPerServer << ",\n \"results\": [";
  for (size_t i = 0; i < results.size(); ++i) file << (i > 0 ? ",\n" : "\n") << Json(results[i]);
  file << "\n ]\n}\n";
  return file.flush().good();
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: plan_time [--devices 32,64] [--json FILE]\n--devices are multiples of %d, two servers or more\n",
        kDevicesPerServer);
    return 2;
  }
  double load = -1;
  if (getloadavg(&load, 1) != 1) load = -1;  // the system does not say
  std::vector<Result> results;
  for (const Skew& skew : kSkews) {
    for (const int32_t devices : options.devices) {
      const Result& made = results.emplace_back(Run(devices, skew));
      std::printf("%5d devices, %-13s: %.1f us, %.1f matchings, %.1f stages\n", devices, made.skew, made.plan.median,
                  made.matchings.mean, made.stages.mean);
      std::fflush(stdout);
    }
  }
  if (!options.json.empty() && !WriteJson(options.json, load, results)) {
    std::fprintf(stderr, "plan_time: cannot write %s\n", options.json.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace fastjax::bench

int main(int argc, char** argv) { return fastjax::bench::Main(argc, argv); }
