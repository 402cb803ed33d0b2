// What a GPU's row kernels make of its memory's bandwidth: lists of rows, moved by the driver that exchanges use,
// beside the driver's copy of as many bytes.
//
//   gpu_kernels [--library LIBRARY] [--json FILE] [--tiny]
//
// Without a library, the emulated driver: that is to see that this program works, and so is --tiny.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu_lists.h"
#include "json.h"
#include "support/gpu_driver/device.h"

namespace fastjax::bench {
namespace {

using gpu_support::Device;
using gpu_support::Random;

struct Settings {
  std::vector<int64_t> sizes;
  int rounds;
  // Of each of source and destination: several times a cache, so that repetitions do not find their rows in it.
  int64_t arena;
  int64_t bytes_of_run;  // that are moved between two looks at the clock
};

constexpr int kWarmUps = 2;
constexpr std::chrono::milliseconds kWarmTime(300);

struct Measured {
  std::string json;
  bool right;
};

// Of one of several launches, queued one behind the other: what a wait costs is spread over them.
double TimeOf(const Device& device, int repetitions, const std::function<void(int)>& launch) {
  const double all = MicrosecondsOf([&] {
    for (int i = 0; i < repetitions; ++i) launch(i);
    device.Wait();
  });
  return all / repetitions;
}

// The clocks of a GPU that had nothing to do rise first.
void WarmUp(const Device& device, const std::function<void()>& work) {
  if (device.emulated()) return;
  const auto end = std::chrono::steady_clock::now() + kWarmTime;
  while (std::chrono::steady_clock::now() < end) work();
}

// Microseconds of each launch. Each round has all of them, in another order: what disturbs the machine for a while
// disturbs all.
std::vector<Spread> TimesOf(const Device& device, int repetitions, int rounds,
                            const std::vector<std::function<void(int)>>& launches, Random* random) {
  std::vector<std::vector<double>> series(launches.size());
  std::vector<size_t> order(launches.size());
  std::iota(order.begin(), order.end(), size_t{0});
  WarmUp(device, [&] { TimeOf(device, repetitions, launches.front()); });
  for (int round = -kWarmUps; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), *random);
    for (const size_t i : order) {
      const double time = TimeOf(device, repetitions, launches[i]);
      if (round >= 0) series[i].push_back(time);
    }
  }
  std::vector<Spread> times;
  for (std::vector<double>& each : series) times.push_back(MakeSpread(std::move(each)));
  return times;
}

// All cases of one size; prints them.
Measured Measure(const Device& device, const Settings& settings, int64_t bytes) {
  const GpuArena arena(&device, bytes, settings.arena);
  Random random(2);
  std::vector<std::unique_ptr<GpuLists>> cases;
  std::vector<std::function<void(int)>> launches;
  for (const GpuCase& which : CasesOf(bytes)) {
    cases.push_back(std::make_unique<GpuLists>(&device, which, &arena, &random));
    launches.emplace_back([lists = cases.back().get()](int repetition) { lists->Launch(repetition); });
  }
  launches.emplace_back([&](int repetition) {
    const size_t at = static_cast<size_t>(repetition) % arena.parts * arena.size;
    device.Copy(arena.dst.data() + at, arena.src.data() + at, arena.size);
  });
  const auto repetitions = static_cast<int>(std::max<int64_t>(2, settings.bytes_of_run / bytes));
  const std::vector<Spread> times = TimesOf(device, repetitions, settings.rounds, launches, &random);
  const Spread& copy = times.back();
  const auto rate = [](int64_t moved, const Spread& time) { return static_cast<double>(moved) / time.median / 1e3; };
  std::printf("\n%.0f MiB: copy %.1f us, %.0f GB/s\n", static_cast<double>(bytes) / (1 << 20), copy.median,
              rate(bytes, copy));
  Measured measured = {"{\"bytes\": " + std::to_string(bytes) + ", \"repetitions\": " + std::to_string(repetitions) +
                           ", \"copy_us\": " + Json(copy) + ", \"cases\": [",
                       true};
  for (size_t i = 0; i < cases.size(); ++i) {
    const GpuLists& lists = *cases[i];
    const std::string name = NameOf(lists.which());
    // What is read and what is written, each counted half: of a copy, its bytes.
    const double share = rate(lists.bytes(), times[i]) * lists.traffic() / rate(bytes, copy);
    const bool right = lists.IsRight();
    measured.right = measured.right && right;
    std::printf("  %-32s %8lld runs %9.1f us %6.0f GB/s %6.3f of the copy%s\n", name.c_str(),
                static_cast<long long>(lists.runs()), times[i].median, rate(lists.bytes(), times[i]), share,
                right ? "" : ", WRONG ROWS");
    measured.json += (i > 0 ? ",\n   " : "\n   ");
    measured.json += "{\"case\": " + Quoted(name) + ", \"bytes\": " + std::to_string(lists.bytes()) +
                     ", \"runs\": " + std::to_string(lists.runs()) + ", \"us\": " + Json(times[i]) +
                     ", \"share_of_copy\": " + Json(std::optional(share)) + ", \"goal\": " + Json(lists.which().goal) +
                     ", \"right\": " + (right ? "true" : "false") + "}";
  }
  std::fflush(stdout);
  measured.json += "\n  ]}";
  return measured;
}

bool WriteJson(const std::string& path, const Device& device, const std::string& sizes) {
  std::ofstream file(path);
  file << "{\n \"platform\": " << Quoted(device.driver().platform) << ", \"max_blocks\": " << device.max_blocks()
       << ",\n \"sizes\": [" << sizes << "\n ]\n}\n";
  return file.flush().good();
}

int Main(const std::string& library, const std::string& json, bool tiny) {
  constexpr int64_t kMiB = 1 << 20;
  const Settings settings = tiny ? Settings{{64 << 10, kMiB}, 2, 2 * kMiB, kMiB}
                                 : Settings{{64 * kMiB, 256 * kMiB, 1024 * kMiB}, 24, 1024 * kMiB, 2048 * kMiB};
  const Device device(library);
  std::printf("%s, at most %d blocks%s\n", device.driver().platform, device.max_blocks(),
              device.emulated() ? ": times of an emulated GPU mean nothing" : "");
  std::string sizes;
  bool right = true;
  for (const int64_t bytes : settings.sizes) {
    const Measured measured = Measure(device, settings, bytes);
    right = right && measured.right;
    sizes += (sizes.empty() ? "\n  " : ",\n  ") + measured.json;
    // After each size, so that a run that is stopped leaves what it has.
    if (!json.empty() && !WriteJson(json, device, sizes)) {
      std::fprintf(stderr, "gpu_kernels: cannot write %s\n", json.c_str());
      return 1;
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace fastjax::bench

int main(int argc, char** argv) {
  std::string library;
  std::string json;
  bool tiny = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const bool valued = i + 1 < argc && *argv[i + 1] != '\0';
    if (argument == "--tiny") {
      tiny = true;
    } else if (argument == "--library" && valued) {
      library = argv[++i];
    } else if (argument == "--json" && valued) {
      json = argv[++i];
    } else {
      std::fprintf(stderr, "usage: gpu_kernels [--library LIBRARY] [--json FILE] [--tiny]\n");
      return 2;
    }
  }
  return fastjax::bench::Main(library, json, tiny);
}
