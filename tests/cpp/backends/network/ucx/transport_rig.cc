#include "transport_rig.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <iostream>
#include <sstream>

// What UCX keeps until the process ends is not for the address sanitizer to report.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() { return "leak:ucs_\n"; }

namespace fastjax::test {

void SayThatItWaits(const char* file, int line) {
  std::ostringstream text;
  text << file << ":" << line << ": still waits\n";
  for (const Context* context = Context::Current(); context != nullptr; context = context->outer()) {
    text << "  in " << context->text() << "\n";
  }
  std::cerr << text.str();
}

TransportState StateOf(UcxTransport* transport) {
  TransportState state;
  while (state.nic_workers.empty()) state = transport->State();
  return state;
}

std::string UcxLibrary() {
  const char* const set = std::getenv("FASTJAX_TEST_UCX");
  return set != nullptr ? set : FASTJAX_UCX_TEST_LIBRARY;
}

TransportOptions OptionsOf(int32_t process, int32_t processes, const std::string& transports) {
  TransportOptions options;
  options.process = process;
  options.processes = processes;
  options.secret = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  options.library = UcxLibrary();
  options.transports = transports;
  return options;
}

TransportRig::TransportRig(int32_t processes, const std::string& transports, size_t nic_workers) {
  for (int32_t process = 0; process < processes; ++process) {
    TransportOptions options = OptionsOf(process, processes, transports);
    if (nic_workers > 1) options.nics.assign(nic_workers, "lo");
    std::string wrong;
    transports_.push_back(UcxTransport::Open(options, &wrong));
    if (transports_.back() == nullptr) {
      std::cerr << "no transport: " << wrong << "\n";
      std::abort();
    }
    handlers_.push_back(std::make_unique<RecordingHandler>());
    transports_.back()->SetHandler(handlers_.back().get());
  }
}

TransportRig::~TransportRig() {
  for (size_t i = 0; i < transports_.size(); ++i) Close(static_cast<int32_t>(i));
}

void TransportRig::Close(int32_t process) {
  if (!transport(process).Close(kToClose)) {
    std::cerr << "transport " << process << " does not close\n";
    std::abort();
  }
}

void TransportRig::Introduce() {
  for (auto& transport : transports_) {
    for (auto& other : transports_) {
      const std::string wrong = transport->AddPeer(other->process(), other->addresses());
      if (!wrong.empty()) std::cerr << wrong << "\n";
    }
  }
}

void TransportRig::On(int32_t process, const std::function<void(UcxTransport*)>& work) {
  std::promise<void> done;
  transport(process).Post([&] {
    work(&transport(process));
    done.set_value();
  });
  done.get_future().wait();
}

void TransportRig::Message(int32_t from, int32_t to, const std::string& text) {
  On(from, [&](UcxTransport* transport) { transport->SendMessage(to, text.data(), text.size()); });
}

void TransportRig::Send(int32_t from, int32_t to, uint64_t tag, const std::vector<Iov>& iovs, Ends* ends,
                        int64_t cookie, int32_t rail) {
  On(from, [&](UcxTransport* transport) {
    const std::vector<Iov>& kept = Keep(iovs);
    transport->Send({{to, rail, rail}, tag, kept.data(), static_cast<int32_t>(kept.size()), ends, cookie});
  });
}

void TransportRig::Receive(int32_t to, int32_t from, uint64_t tag, const std::vector<Iov>& iovs, Ends* ends,
                           int64_t cookie, int32_t rail) {
  On(to, [&](UcxTransport* transport) {
    const std::vector<Iov>& kept = Keep(iovs);
    transport->Receive({{from, rail, rail}, tag, kept.data(), static_cast<int32_t>(kept.size()), ends, cookie});
  });
}

std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> pattern(bytes);
  uint32_t x = seed * 2654435761u + 1;
  for (std::byte& byte : pattern) {
    x = x * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(x >> 24);
  }
  return pattern;
}

std::vector<Iov> Whole(std::vector<std::byte>* data) { return {{data->data(), data->size()}}; }

std::vector<Iov> Cut(std::vector<std::byte>* data, size_t bytes, int count) {
  std::vector<Iov> iovs;
  size_t left = bytes;
  size_t at = 0;
  for (int i = 0; i < count; ++i) {
    const size_t take =
        i + 1 == count ? left
                       : std::min(left, static_cast<size_t>(i) * bytes / static_cast<size_t>(count * count / 2 + 1));
    iovs.push_back({data->data() + at, take});
    at += take + 3;
    left -= take;
  }
  return iovs;
}

std::string Joined(const std::vector<Iov>& iovs) {
  std::string joined;
  for (const Iov& iov : iovs) joined.append(static_cast<const char*>(iov.data), iov.bytes);
  return joined;
}

void Exchange(TransportRig* rig, int32_t from, int32_t to, uint64_t tag, int32_t rail) {
  Ends ends;
  auto data = Pattern(100000, static_cast<uint32_t>(tag));
  std::vector<std::byte> into(data.size());
  rig->Send(from, to, tag, Whole(&data), &ends, 0, rail);
  rig->Receive(to, from, tag, Whole(&into), &ends, 1, rail);
  ends.CheckAll(2);
  CHECK(data == into);
}

}  // namespace fastjax::test
