// What a GPU's row kernels make of its memory's bandwidth: lists of rows, moved by the driver that exchanges use,
// beside the driver's copy of as many bytes.
//
//   gpu_kernels [--library LIBRARY] [--json FILE] [--tiny]
//
// Without a library, the emulated driver: that is to see that this program works, and so is --tiny.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu_cases.h"
#include "gpu_lists.h"
#include "json.h"
#include "support/gpu_driver/device.h"

namespace fastjax::bench {
namespace {

using gpu_support::Device;
using gpu_support::Memory;
using gpu_support::MoveLine;
using gpu_support::Random;
using kernels::Move;

struct Settings {
  std::vector<int64_t> sizes;
  int rounds;
  // Of each of source and destination: several times a cache, so that repetitions do not find their rows in it.
  int64_t arena;
  int64_t bytes_of_run;  // that are moved between two looks at the clock
};

constexpr int kWarmUps = 2;
constexpr std::chrono::milliseconds kWarmTime(300);

double MicrosecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

struct Timed {
  GpuCase which;
  int64_t bytes;
  int64_t runs;
  Spread time;
  double share;  // of the copy's bandwidth
  bool right;
};

struct Sized {
  int64_t bytes;
  int repetitions;
  int64_t parts;
  Spread copy;
  std::vector<Timed> cases;
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

Sized Measure(const Device& device, const Settings& settings, int64_t bytes) {
  const GpuArena arena(&device, bytes, settings.arena);
  Random random(2);
  std::vector<std::unique_ptr<GpuLists>> lists;
  for (const GpuCase& which : CasesOf(bytes)) {
    lists.push_back(std::make_unique<GpuLists>(&device, which, &arena, &random));
  }
  const auto repetitions = static_cast<int>(std::max<int64_t>(2, settings.bytes_of_run / bytes));
  const auto copy = [&](int repetition) {
    const size_t at = static_cast<size_t>(repetition) % arena.parts * arena.size;
    device.Copy(arena.dst.data() + at, arena.src.data() + at, arena.size);
  };
  // Each round has all of them, in another order: what disturbs the machine for a while disturbs all. The copy comes
  // last of the series.
  std::vector<std::vector<double>> series(lists.size() + 1);
  std::vector<size_t> order(series.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  WarmUp(device, [&] { TimeOf(device, repetitions, [&](int r) { lists.front()->Launch(r); }); });
  for (int round = -kWarmUps; round < settings.rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      const double time = i < lists.size() ? TimeOf(
                                                 device, repetitions, [&](int r) { lists[i]->Launch(r); })
                                           : TimeOf(device, repetitions, copy);
      if (round >= 0) series[i].push_back(time);
    }
  }
  Sized sized = {bytes, repetitions, static_cast<int64_t>(arena.parts), MakeSpread(series.back()), {}};
  for (size_t i = 0; i < lists.size(); ++i) {
    const Spread time = MakeSpread(series[i]);
    // What is read and what is written, each counted half: of a copy, its bytes.
    const double traffic = static_cast<double>(lists[i]->bytes()) * lists[i]->traffic();
    const double share = (traffic / time.median) / (static_cast<double>(bytes) / sized.copy.median);
    sized.cases.push_back({lists[i]->which(), lists[i]->bytes(), lists[i]->runs(), time, share, lists[i]->IsRight()});
  }
  return sized;
}

// Of a list of one row, in microseconds.
struct Launches {
  Spread host;      // the call that launches
  Spread waited;    // and the wait for its end
  Spread uploaded;  // and, before it, the list's way to the device, as in an exchange
  Spread empty;     // the wait for a stream that has nothing to do
};

Launches MeasureLaunches(const Device& device, int rounds) {
  constexpr int64_t kRow = 8192;
  constexpr int kQueued = 100;
  const Memory src(&device, kRow);
  const Memory dst(&device, kRow);
  MoveLine line;
  line.Add(dst.data(), src.data(), kRow);
  const Memory pinned(&device, sizeof(Move), Memory::Place::kHost);
  const Memory list(&device, sizeof(Move));
  std::memcpy(pinned.data(), line.moves.data(), sizeof(Move));
  const auto upload = [&] { device.Copy(list.data(), pinned.data(), sizeof(Move)); };
  const auto launch = [&] {
    device.Must(device.driver().MoveRows(reinterpret_cast<const Move*>(list.data()), 1, line.end, 1, device.stream()),
                "move rows");
  };
  upload();
  WarmUp(device, [&] { launch(), device.Wait(); });
  std::vector<double> host;
  std::vector<double> waited;
  std::vector<double> uploaded;
  std::vector<double> empty;
  for (int round = -kWarmUps; round < rounds; ++round) {
    const double queued = MicrosecondsOf([&] {
      for (int i = 0; i < kQueued; ++i) launch();
    });
    device.Wait();
    const double alone = MicrosecondsOf([&] { launch(), device.Wait(); });
    const double all = MicrosecondsOf([&] { upload(), launch(), device.Wait(); });
    const double wait = MicrosecondsOf([&] { device.Wait(); });
    if (round < 0) continue;
    host.push_back(queued / kQueued);
    waited.push_back(alone);
    uploaded.push_back(all);
    empty.push_back(wait);
  }
  return {MakeSpread(host), MakeSpread(waited), MakeSpread(uploaded), MakeSpread(empty)};
}

double Gigabytes(int64_t bytes, double microseconds) { return static_cast<double>(bytes) / microseconds / 1e3; }

void Print(const Sized& sized, bool judged) {
  std::printf("\n%.0f MiB: copy %.1f us, %.0f GB/s\n", static_cast<double>(sized.bytes) / (1 << 20), sized.copy.median,
              Gigabytes(sized.bytes, sized.copy.median));
  for (const Timed& timed : sized.cases) {
    const bool missed = judged && timed.which.goal && timed.share < *timed.which.goal;
    std::printf("  %-32s %8lld runs %9.1f us %6.0f GB/s %6.3f of the copy%s%s\n", NameOf(timed.which).c_str(),
                static_cast<long long>(timed.runs), timed.time.median, Gigabytes(timed.bytes, timed.time.median),
                timed.share, missed ? ", goal missed" : "", timed.right ? "" : ", WRONG ROWS");
  }
  std::fflush(stdout);
}

void Print(const Launches& launches) {
  std::printf("one row: launch %.2f us on the host; with its end %.2f; with its list %.2f; nothing at all %.2f\n",
              launches.host.median, launches.waited.median, launches.uploaded.median, launches.empty.median);
  std::fflush(stdout);
}

std::string ToJson(const Timed& timed) {
  return "{\"case\": " + Quoted(NameOf(timed.which)) + ", \"bytes\": " + std::to_string(timed.bytes) +
         ", \"row_bytes\": " + std::to_string(timed.which.row_bytes) + ", \"runs\": " + std::to_string(timed.runs) +
         ", \"us\": " + Json(timed.time) + ", \"share_of_copy\": " + Json(std::optional(timed.share)) +
         ", \"goal\": " + Json(timed.which.goal) + ", \"right\": " + (timed.right ? "true" : "false") + "}";
}

std::string ToJson(const Sized& sized) {
  std::string json =
      "{\"bytes\": " + std::to_string(sized.bytes) + ", \"repetitions\": " + std::to_string(sized.repetitions) +
      ", \"parts_of_arena\": " + std::to_string(sized.parts) + ", \"copy_us\": " + Json(sized.copy) + ", \"cases\": [";
  for (size_t i = 0; i < sized.cases.size(); ++i) json += (i > 0 ? ",\n   " : "\n   ") + ToJson(sized.cases[i]);
  return json + "\n  ]}";
}

bool WriteJson(const std::string& path, const Device& device, double load, const Launches& launches,
               const std::vector<Sized>& sizes) {
  std::ofstream file(path);
  file << "{\n"
       << JsonHead("fastjax-gpu-kernels-1", load) << ",\n \"platform\": " << Quoted(device.driver().platform)
       << ", \"max_blocks\": " << device.max_blocks() << ",\n \"one_row_us\": {\"launch\": " << Json(launches.host)
       << ", \"waited\": " << Json(launches.waited) << ", \"uploaded\": " << Json(launches.uploaded)
       << ", \"empty_stream\": " << Json(launches.empty) << "},\n \"sizes\": [";
  for (size_t i = 0; i < sizes.size(); ++i) file << (i > 0 ? ",\n  " : "\n  ") << ToJson(sizes[i]);
  file << "\n ]\n}\n";
  return file.flush().good();
}

int Main(const std::string& library, const std::string& json, bool tiny) {
  constexpr int64_t kMiB = 1 << 20;
  const Settings settings = tiny ? Settings{{64 << 10, kMiB}, 2, 2 * kMiB, kMiB}
                                 : Settings{{64 * kMiB, 256 * kMiB, 1024 * kMiB}, 24, 1024 * kMiB, 2048 * kMiB};
  const double load = LoadAverage();
  const Device device(library);
  std::printf("%s, at most %d blocks%s\n", device.driver().platform, device.max_blocks(),
              device.emulated() ? ": times of an emulated GPU mean nothing" : "");
  const Launches launches = MeasureLaunches(device, settings.rounds);
  Print(launches);
  std::vector<Sized> sizes;
  bool right = true;
  for (const int64_t bytes : settings.sizes) {
    sizes.push_back(Measure(device, settings, bytes));
    Print(sizes.back(), !device.emulated());
    for (const Timed& timed : sizes.back().cases) right = right && timed.right;
    // After each size, so that a run that is stopped leaves what it has.
    if (!json.empty() && !WriteJson(json, device, load, launches, sizes)) {
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
