// Runs a fuzz target where there is no libFuzzer, with the least of its command line:
//
//   TARGET [-runs=N] [-seed=S] [FILE | FOLDER]...
//
// Every file once, and then N inputs that are files changed at random. The input at fault is left in a file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "choices.h"
#include "crash_report.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fastjax::test {
namespace {

using Input = std::vector<uint8_t>;

constexpr int64_t kLongest = 4096;
constexpr uint32_t kTelling[] = {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 0x00010000, 0x100};

void Save(const void* what) {
  const auto* input = static_cast<const Input*>(what);
  const std::string name = "crash-input";
  std::ofstream(name, std::ios::binary)
      .write(reinterpret_cast<const char*>(input->data()), static_cast<std::streamsize>(input->size()));
  std::cerr << "the input is in " << std::filesystem::absolute(name) << std::endl;
}

void Run(const Input& input) {
  const CrashReport report(Save, &input);
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

Input Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::cerr << "cannot read " << path << "\n";
    std::exit(2);
  }
  return Input(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::vector<Input> ReadAll(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // folders list in any order
  std::vector<Input> inputs;
  for (const auto& file : files) inputs.push_back(Read(file));
  return inputs;
}

void Change(const std::vector<Input>& corpus, Choices* choices, Input* input) {
  const auto place = [&] { return static_cast<int64_t>(choices->Below(static_cast<int64_t>(input->size()))); };
  if (input->empty()) input->push_back(0);
  switch (choices->Below(6)) {
    case 0:
      (*input)[place()] ^= static_cast<uint8_t>(1 << choices->Below(8));
      return;
    case 1:
      (*input)[place()] = static_cast<uint8_t>(choices->Below(256));
      return;
    case 2: {
      const uint32_t word = choices->Pick(kTelling) + static_cast<uint32_t>(choices->Below(3));
      const int64_t at = place() & ~int64_t{3};
      for (int64_t i = 0; i < 4 && at + i < static_cast<int64_t>(input->size()); ++i) {
        (*input)[at + i] = static_cast<uint8_t>(word >> (8 * i));
      }
      return;
    }
    case 3:
      input->erase(input->begin() + place(), input->end());
      return;
    case 4: {
      Input tail(static_cast<size_t>(1 + choices->Below(64)));
      for (uint8_t& byte : tail) byte = static_cast<uint8_t>(choices->Below(256));
      input->insert(input->begin() + place(), tail.begin(), tail.end());
      return;
    }
    default: {
      const Input& other = corpus[choices->Below(static_cast<int64_t>(corpus.size()))];
      const int64_t at = place();
      if (static_cast<int64_t>(other.size()) <= at) return;
      input->resize(static_cast<size_t>(at));
      input->insert(input->end(), other.begin() + at, other.end());
    }
  }
}

int Main(int argc, char** argv) {
  int64_t runs = 0;
  uint64_t seed = 1;
  std::vector<std::string> paths;
  for (const std::string& word : std::vector<std::string>(argv + 1, argv + argc)) {
    if (word.rfind("-runs=", 0) == 0) {
      runs = std::stoll(word.substr(6));
    } else if (word.rfind("-seed=", 0) == 0) {
      seed = std::stoull(word.substr(6));
    } else if (word[0] == '-') {
      std::cerr << "only libFuzzer knows " << word << "\n";
      return 2;
    } else {
      paths.push_back(word);
    }
  }
  std::vector<Input> corpus = ReadAll(paths);
  for (const Input& input : corpus) Run(input);
  if (corpus.empty()) corpus.emplace_back(64);
  Choices choices(seed);
  for (int64_t run = 0; run < runs; ++run) {
    Input input = corpus[choices.Below(static_cast<int64_t>(corpus.size()))];
    for (int64_t changes = 1 + choices.Below(5); changes > 0; --changes) Change(corpus, &choices, &input);
    if (static_cast<int64_t>(input.size()) > kLongest) input.resize(kLongest);
    Run(input);
  }
  std::cout << "ran " << corpus.size() << " inputs and " << runs << " made of them\n";
  return 0;
}

}  // namespace
}  // namespace fastjax::test

int main(int argc, char** argv) { return fastjax::test::Main(argc, argv); }
