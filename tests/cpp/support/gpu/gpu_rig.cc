#include "support/gpu/gpu_rig.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "backends/gpu/device/gpu.h"
#include "kernels/emulated_gpu.h"
#include "support/check.h"
#include "support/outcomes.h"

namespace fastjax::test {
namespace {

using kernels::Driver;

constexpr int kFailure = 2;  // out of memory
constexpr int32_t kDevices = 16;
constexpr int64_t kManyCalls = int64_t{1} << 40;
std::atomic<int64_t> calls_left{-1};

bool Fails() {
  int64_t left = calls_left.load();
  while (left >= 0 && !calls_left.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0;
}

// A member of the driver's table that fails when it is told to, and does nothing then.
template <auto Member>
struct Faulty;

template <typename... Args, int (*Driver::*Member)(Args...)>
struct Faulty<Member> {
  static int Call(Args... args) { return Fails() ? kFailure : (fastjax_gpu_driver()->*Member)(args...); }
};

// The thread has a device even so: strays are to be those that nobody has tried to keep from it.
int FaultySetDevice(int device) {
  const int code = fastjax_gpu_driver()->SetDevice(device);
  return Fails() ? kFailure : code;
}

// Of the arrays that a caller has, one of which may have other rows than the exchange.
size_t SourceBytes(const ExchangeArgs& args) {
  const bool gathered = args.device_indices != nullptr && args.device_starts == nullptr;
  return static_cast<size_t>((gathered ? args.indexed_rows : args.source_rows) * args.row_bytes);
}

size_t DestinationBytes(const ExchangeArgs& args) {
  if (args.device_starts == nullptr) return static_cast<size_t>(args.destination_rows * args.row_bytes);
  const kernels::SumTypes types = args.sum_types();
  const size_t elements = static_cast<size_t>(args.row_bytes) / kernels::ElementBytes(types.element);
  return static_cast<size_t>(args.indexed_rows) * elements * kernels::ElementBytes(types.sum);
}

// A device, for the calling thread; afterwards it has what it had.
class Chosen {
 public:
  explicit Chosen(int32_t device) {
    fastjax_gpu_driver()->GetDevice(&before_);
    fastjax_gpu_driver()->SetDevice(device);
  }
  ~Chosen() { fastjax_gpu_driver()->SetDevice(before_); }
  Chosen(const Chosen&) = delete;
  Chosen& operator=(const Chosen&) = delete;

 private:
  int before_ = kernels::kNoDevice;
};

}  // namespace

void CheckNoMisuse() {
  CHECK_EQ(RepeatedCompletions().load(), 0);
  CHECK_EQ(kernels::emulatedStrays().load(), 0);
  CHECK_EQ(kernels::emulatedLazyLoads().load(), 0);
}

FaultyDriver::FaultyDriver() : driver_(*fastjax_gpu_driver()) {
  driver_.SetDevice = FaultySetDevice;
  driver_.EnablePeer = Faulty<&Driver::EnablePeer>::Call;
  driver_.CountMultiprocessors = Faulty<&Driver::CountMultiprocessors>::Call;
  driver_.MallocPinned = Faulty<&Driver::MallocPinned>::Call;
  driver_.CreateStream = Faulty<&Driver::CreateStream>::Call;
  driver_.CreateEvent = Faulty<&Driver::CreateEvent>::Call;
  driver_.RecordEvent = Faulty<&Driver::RecordEvent>::Call;
  driver_.WaitEvent = Faulty<&Driver::WaitEvent>::Call;
  driver_.Copy = Faulty<&Driver::Copy>::Call;
  driver_.LoadKernels = Faulty<&Driver::LoadKernels>::Call;
  driver_.MoveRows = Faulty<&Driver::MoveRows>::Call;
  driver_.MoveFew = Faulty<&Driver::MoveFew>::Call;
  driver_.GatherRows = Faulty<&Driver::GatherRows>::Call;
  driver_.SumIndexed = Faulty<&Driver::SumIndexed>::Call;
  driver_.Fetch = Faulty<&Driver::Fetch>::Call;
}

void FaultyDriver::FailAfter(int64_t calls) { calls_left = calls; }

bool FaultyDriver::Stop() { return calls_left.exchange(-1) < 0; }

void FaultyDriver::Count() { FailAfter(kManyCalls); }

int64_t FaultyDriver::Counted() { return kManyCalls - calls_left.exchange(-1); }

kernels::Driver WithoutPeers(const kernels::Driver& driver) {
  kernels::Driver without = driver;
  without.EnablePeer = [](int, int* possible) {
    *possible = 0;
    return 0;
  };
  return without;
}

const kernels::Driver* DriverWithoutPeers() {
  static const kernels::Driver driver = WithoutPeers(*fastjax_gpu_driver());
  return &driver;
}

// What must live until the stream has come to the end of a call.
struct StreamedExchange::Call {
  gpu::Caller caller;
  ExchangeArgs args;
  std::vector<std::byte> source;       // what is to be in there
  std::vector<std::byte> destination;  // what was in there after the exchange
  std::mutex mutex;
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::unique_ptr<gpu::CallMemory> call_memory;
  int64_t limit = -1;
  int64_t throw_at = -1;
  std::shared_ptr<std::atomic<int64_t>> enqueued;  // of the exchange, which may be gone when this one ends

  std::byte* Allocate(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (static_cast<int64_t>(memory.size()) == throw_at) throw std::bad_alloc();
    if (limit >= 0 && static_cast<int64_t>(bytes) > limit) return nullptr;
    if (limit >= 0) limit -= static_cast<int64_t>(bytes);
    if (call_memory != nullptr) return call_memory->Allocate(bytes);
    memory.push_back(std::make_unique<std::byte[]>(bytes));
    return memory.back().get();
  }

  static void Copy(void* dst, const void* src, size_t bytes) {
    if (bytes > 0) std::memcpy(dst, src, bytes);
  }
  static void Spoil(void* dst, size_t bytes) {
    if (bytes > 0) std::memset(dst, 0xA7, bytes);
  }

  void Before() const { Copy(const_cast<std::byte*>(args.source), source.data(), source.size()); }
  void After() {
    Copy(destination.data(), args.destination, destination.size());
    Spoil(args.destination, destination.size());
    Spoil(const_cast<std::byte*>(args.source), source.size());
    for (const auto& block : memory) block[0] = std::byte{0xA7};
  }
  void End() const {
    Before();
    Copy(args.destination, destination.data(), destination.size());
  }
};

StreamedExchange::StreamedExchange(std::shared_ptr<gpu::Gpu> gpu, std::shared_ptr<Exchange> exchange,
                                   int32_t partitions, bool one_stream)
    : gpu_(std::move(gpu)), exchange_(std::move(exchange)), one_stream_(one_stream) {
  for (int32_t i = 0; i < partitions; ++i) {
    kernels::Stream stream = i == 0 || !one_stream ? nullptr : streams_.front();
    fastjax_gpu_driver()->SetDevice(one_stream ? 0 : i % kDevices);
    if (stream == nullptr) fastjax_gpu_driver()->CreateStream(&stream);
    streams_.push_back(stream);
  }
  fastjax_gpu_driver()->SetDevice(0);
}

void StreamedExchange::Compute(int32_t partition, const std::shared_ptr<Computation>& computation) {
  computations_.push_back(computation);
  computation->PutOn(streams_[static_cast<size_t>(partition)]);
}

StreamedExchange::~StreamedExchange() {
  const Chosen chosen(0);
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (i == 0 || !one_stream_) fastjax_gpu_driver()->DestroyStream(streams_[i]);
  }
}

void StreamedExchange::Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) {
  const Driver& driver = *fastjax_gpu_driver();
  const int32_t device = one_stream_ ? 0 : partition % kDevices;
  const Chosen chosen(device);  // as XLA's threads have
  auto call = std::make_shared<Call>();
  call->limit = memory_;
  call->throw_at = throw_at_;
  call->enqueued = enqueued_;
  call->args = args;
  call->source.assign(args.source, args.source + SourceBytes(args));
  call->destination.resize(DestinationBytes(args));
  Call::Spoil(const_cast<std::byte*>(args.source), call->source.size());
  call->caller = {streams_[static_cast<size_t>(partition)], device,
                  [raw = call.get()](size_t bytes) { return raw->Allocate(bytes); }};
  if (call_memory_) call->call_memory = std::make_unique<gpu::CallMemory>(gpu_.get(), device, call->caller.stream);
  driver.CallHost(call->caller.stream, [](void* data) { static_cast<Call*>(data)->Before(); }, call.get());
  args.context = &call->caller;
  exchange_->Start(run_id, partition, args, [call, &driver, device, done = std::move(done)](const Status& status) {
    ++*call->enqueued;
    const Chosen again(device);
    call->call_memory = nullptr;
    driver.CallHost(call->caller.stream, [](void* data) { static_cast<Call*>(data)->After(); }, call.get());
    driver.SynchronizeStream(call->caller.stream);
    call->End();
    done(status);
  });
}

}  // namespace fastjax::test
