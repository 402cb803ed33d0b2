#include "support/exchange_rig.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "support/check.h"
#include "support/outcomes.h"
#include "support/sites.h"
#include "support/sums.h"
#include "support/threads.h"

namespace fastjax::test {
namespace {

using kernels::ElementKind;

// Fast: most of what these tests do is to fill buffers.
class Bits {
 public:
  explicit Bits(std::mt19937_64* random) : state_((*random)() | 1) {}
  uint64_t operator()() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

 private:
  uint64_t state_;
};

// Numbers that add up to numbers: neither infinities nor NaNs.
void FillElements(ElementKind element, Buffer* buffer, std::mt19937_64* random) {
  std::byte* const end = buffer->data() + buffer->bytes();
  const auto fill = [&](auto value) {
    for (std::byte* at = buffer->data(); end - at >= static_cast<std::ptrdiff_t>(sizeof(value()));
         at += sizeof(value())) {
      const auto next = value();
      std::memcpy(at, &next, sizeof(next));
    }
  };
  Bits bits(random);
  const auto fraction = [&] { return static_cast<double>(bits() >> 12) * 0x1p-52 - 0.5; };
  switch (element) {
    case ElementKind::kOpaque:
      return;
    case ElementKind::kF16:
    case ElementKind::kBF16:
      return fill([&] { return static_cast<uint16_t>(bits() & 0xBFFF); });
    case ElementKind::kF32:
      return fill([&] { return static_cast<float>(fraction()); });
    case ElementKind::kF64:
      return fill(fraction);
  }
}

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// dst += src * factor, of one row, one operation after the other: compilers must not round them at once.
template <typename T>
void AddNumbers(std::byte* dst, const std::byte* src, int64_t bytes, const std::byte* factor) {
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(sizeof(T))) {
    volatile T product = Load<T>(src + at);
    if (factor != nullptr) product = product * Load<T>(factor);
    const T sum = Load<T>(dst + at) + product;
    std::memcpy(dst + at, &sum, sizeof(T));
  }
}

// What kernels_test checks for all of them.
std::vector<float> Widened(ElementKind element, const std::byte* src, int64_t bytes) {
  std::vector<float> wide(static_cast<size_t>(bytes) / 2);
  const kernels::Summand row = {src, nullptr};
  kernels::AddUp(reinterpret_cast<std::byte*>(wide.data()), wide.size(), {element, ElementKind::kF32}, &row, 1);
  return wide;
}

void AddElements(kernels::SumTypes types, std::byte* dst, const std::byte* src, int64_t bytes,
                 const std::byte* factor) {
  if (types.element == ElementKind::kF32) return AddNumbers<float>(dst, src, bytes, factor);
  if (types.element == ElementKind::kF64) return AddNumbers<double>(dst, src, bytes, factor);
  if (types.element == types.sum) return AddTo(dst, src, static_cast<size_t>(bytes), types.element);
  const std::vector<float> wide = Widened(types.element, src, bytes);
  AddNumbers<float>(dst, reinterpret_cast<const std::byte*>(wide.data()), 2 * bytes, factor);
}

// Rows that land together. In positions.
struct RowMove {
  int32_t origin;
  int32_t target;
  int64_t source_row;
  int64_t destination_row;
  int64_t rows;
  int64_t input_offset;  // of their slice
};

// The entries of each index in their order, and where those of each begin.
void SortByIndex(const std::vector<int32_t>& indices, int64_t rows, std::vector<int32_t>* entries,
                 std::vector<int32_t>* starts) {
  for (int64_t row = 0; row < rows; ++row) {
    starts->push_back(static_cast<int32_t>(entries->size()));
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == row) entries->push_back(static_cast<int32_t>(i));
    }
  }
  starts->push_back(static_cast<int32_t>(entries->size()));
}

bool Overlap(const std::vector<RowMove>& moves) {
  for (size_t i = 0; i < moves.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const RowMove& a = moves[i];
      const RowMove& b = moves[j];
      if (a.target == b.target && a.destination_row < b.destination_row + b.rows &&
          b.destination_row < a.destination_row + a.rows) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

Buffer::Buffer(int64_t bytes, std::mt19937_64* random) : memory_(static_cast<size_t>(bytes + 2 * kGuard)) {
  Bits bits(random);
  for (size_t at = 0; at < memory_.size(); at += sizeof(uint64_t)) {
    const uint64_t next = bits();
    std::memcpy(memory_.data() + at, &next, std::min(sizeof(next), memory_.size() - at));
  }
}

// Not the vectors' own: those compare byte by byte, which takes sanitizers most of the test's time.
bool Buffer::operator==(const Buffer& other) const {
  return memory_.size() == other.memory_.size() &&
         std::memcmp(memory_.data(), other.memory_.data(), memory_.size()) == 0;
}

bool Buffer::SameGuards(const Buffer& other) const {
  return bytes() == other.bytes() && std::equal(memory_.begin(), memory_.begin() + kGuard, other.memory_.begin()) &&
         std::equal(memory_.end() - kGuard, memory_.end(), other.memory_.end() - kGuard);
}

Rig::Rig(std::shared_ptr<const CallSite> site, const RigOptions& options, const Matrix& traffic,
         std::mt19937_64* random)
    : site_(std::move(site)), options_(options), random_((*random)()) {
  const Matrix exchanged = options.exchange.transposed_table ? Transposed(options.topology, traffic) : traffic;
  const Tables tables = MakeTables(*site_, options.topology, options.scheduler, traffic);
  std::vector<Layout> layouts;
  for (int32_t group = 0; group < site_->groups(); ++group) {
    layouts.push_back(MakeLayout(*site_, exchanged, options.per_peer, options.overlap, &random_));
  }
  for (int32_t partition = 0; partition < site_->partitions(); ++partition) {
    const auto position = static_cast<size_t>(site_->position_of[partition]);
    const Metadata& metadata = layouts[site_->group_of[partition]][position];
    ExchangeArgs args = metadata.Args(options.exchange.reverse);
    args.row_bytes = options.row_bytes;
    args.element = options.element;
    args.sum = options.sum;
    std::vector<int32_t> indices;
    std::vector<int32_t> entries;
    std::vector<int32_t> starts;
    int64_t source_rows = args.source_rows;
    int64_t destination_rows = args.destination_rows;
    if (options.exchange.indexed) {
      int64_t* const indexed = options.exchange.reverse ? &destination_rows : &source_rows;
      args.indexed_rows = *indexed / 2 + 1;
      for (int64_t i = 0; i < *indexed; ++i) {
        indices.push_back(static_cast<int32_t>(random_() % static_cast<uint64_t>(args.indexed_rows)));
      }
      *indexed = args.indexed_rows;
      if (options.exchange.reverse) SortByIndex(indices, args.indexed_rows, &entries, &starts);
    }
    const ElementKind sum = args.sum_types().sum;
    const auto sum_bytes = static_cast<int64_t>(kernels::ElementBytes(sum));
    Buffer source(source_rows * options.row_bytes, &random_);
    Buffer factors(options.factors ? args.source_rows * sum_bytes : 0, &random_);
    Buffer destination(destination_rows * ResultBytes(), &random_);
    FillElements(options.element, &source, &random_);
    FillElements(sum, &factors, &random_);
    FillElements(sum, &destination, &random_);
    devices_.push_back({metadata, args, tables[position], indices, entries, starts, factors, source, source,
                        destination, destination, destination});
  }
  for (int32_t group = 0; group < site_->groups(); ++group) Expect(group, layouts[group]);
}

// Plain loops over what callers pass: no plan, no ranks but for the order of sums.
void Rig::Expect(int32_t group, const Layout& layout) {
  const bool reverse = options_.exchange.reverse;
  std::vector<RowMove> moves;
  for (const Update& update : Updates(layout)) {
    if (update.rows == 0) continue;
    if (options_.exchange.indexed) {
      const std::vector<int32_t>& indices = devices_[site_->partition(group, update.sender)].indices;
      for (int64_t i = 0; i < update.rows; ++i) {
        const int64_t there = update.output_offset + i;
        const int64_t row = indices[static_cast<size_t>(update.input_offset + i)];
        moves.push_back(reverse ? RowMove{update.receiver, update.sender, there, row, 1, update.input_offset}
                                : RowMove{update.sender, update.receiver, row, there, 1, update.input_offset});
      }
    } else {
      const int64_t in = update.input_offset;
      const int64_t out = update.output_offset;
      moves.push_back(reverse ? RowMove{update.receiver, update.sender, out, in, update.rows, in}
                              : RowMove{update.sender, update.receiver, in, out, update.rows, in});
    }
  }
  std::stable_sort(moves.begin(), moves.end(), [&](const RowMove& a, const RowMove& b) {
    return std::tie(a.input_offset, site_->rank_of[a.origin]) < std::tie(b.input_offset, site_->rank_of[b.origin]);
  });
  const bool sums = reverse && (options_.exchange.indexed || Overlap(moves));
  sums_ = sums_ || sums;
  const auto each = [&](auto visit) {
    for (const RowMove& move : moves) {
      Device& to = devices_[site_->partition(group, move.target)];
      const Device& from = devices_[site_->partition(group, move.origin)];
      visit(to.expected.data() + move.destination_row * ResultBytes(), from, move);
    }
  };
  const auto source = [&](const Device& from, int64_t row) { return from.source.data() + row * options_.row_bytes; };
  if (!sums) {
    each([&](std::byte* dst, const Device& from, const RowMove& move) {
      std::copy_n(source(from, move.source_row), move.rows * options_.row_bytes, dst);
    });
    return;
  }
  each([&](std::byte* dst, const Device&, const RowMove& move) {
    std::fill_n(dst, move.rows * ResultBytes(), std::byte{0});
  });
  each([&](std::byte* dst, const Device& from, const RowMove& move) {
    for (int64_t i = 0; i < move.rows; ++i) {
      const kernels::SumTypes types = from.args.sum_types();
      const auto factor_bytes = static_cast<int64_t>(kernels::ElementBytes(types.sum));
      const std::byte* const factor =
          options_.factors ? from.factors.data() + (move.source_row + i) * factor_bytes : nullptr;
      AddElements(types, dst + i * ResultBytes(), source(from, move.source_row + i), options_.row_bytes, factor);
    }
  });
}

int64_t Rig::ResultBytes() const {
  if (options_.sum == ElementKind::kOpaque) return options_.row_bytes;
  const auto bytes = [](ElementKind kind) { return static_cast<int64_t>(kernels::ElementBytes(kind)); };
  return options_.row_bytes / bytes(options_.element) * bytes(options_.sum);
}

void Rig::Start(Exchange* exchange, int64_t run_id, int32_t partition, Completion done) {
  Device& device = devices_[partition];
  ExchangeArgs args = device.args;
  // Where there is no memory there is no address.
  args.source = device.source.bytes() == 0 ? nullptr : device.source.data();
  args.destination = device.destination.bytes() == 0 ? nullptr : device.destination.data();
  const ExchangeArgs views = device.metadata.Args(options_.exchange.reverse);
  args.input_offsets = views.input_offsets;
  args.send_sizes = views.send_sizes;
  args.output_offsets = views.output_offsets;
  args.recv_sizes = views.recv_sizes;
  if (options_.exchange.indexed && !options_.on_device) args.indices = device.indices.data();
  if (options_.exchange.indexed && options_.on_device) {
    args.device_indices = options_.exchange.reverse ? device.entries.data() : device.indices.data();
    if (options_.exchange.reverse) args.device_starts = device.starts.data();
  }
  if (options_.factors) args.factors = device.factors.data();
  args.table = device.table.data();
  args.table_words = static_cast<int64_t>(device.table.size());
  exchange->Start(run_id, partition, args, std::move(done));
}

void Rig::StartAll(Exchange* exchange, int64_t run_id, const Outcomes& outcomes, int32_t process) {
  for (int32_t partition = 0; partition < site_->partitions(); ++partition) {
    if (process >= 0 && site_->process_of[partition] != process) continue;
    Start(exchange, run_id, partition, outcomes.For(partition));
  }
}

Outcomes Rig::Run(Exchange* exchange, int64_t run_id, bool threads) {
  Outcomes outcomes(site_->partitions());
  const auto start = [&](int32_t partition) { Start(exchange, run_id, partition, outcomes.For(partition)); };
  if (threads) {
    RunThreads(site_->partitions(), start);
  } else {
    for (const int32_t partition : Numbers(site_->partitions(), &random_)) start(partition);
  }
  outcomes.WaitAll();
  return outcomes;
}

void Rig::CheckEnd(const Outcomes& outcomes, const char* file, int line) {
  const Context context(std::string(file) + ":" + std::to_string(line));
  outcomes.WaitAll();
  CHECK(outcomes.all_ok());
  for (int32_t i = 0; i < outcomes.count(); ++i) CHECK_EQ(outcomes.status(i).message, "");
  CHECK(IsRight());
}

bool Rig::IsRight() const {
  return std::all_of(devices_.begin(), devices_.end(), [](const Device& device) {
    return device.destination == device.expected && device.source == device.source_before;
  });
}

bool Rig::IsUntouched() const {
  return std::all_of(devices_.begin(), devices_.end(), [](const Device& device) {
    return device.destination == device.destination_before && device.source == device.source_before;
  });
}

bool Rig::GuardsAreWhole() const {
  return std::all_of(devices_.begin(), devices_.end(), [](const Device& device) {
    return device.destination.SameGuards(device.destination_before) && device.source == device.source_before;
  });
}

void Rig::Reset() {
  for (Device& device : devices_) device.destination = device.destination_before;
}

std::vector<RigOptions> IndexedSums() {
  constexpr ElementKind kKinds[] = {ElementKind::kF16, ElementKind::kBF16, ElementKind::kF32, ElementKind::kF64};
  std::vector<RigOptions> all;
  for (const ElementKind element : kKinds) {
    for (const ElementKind sum : {ElementKind::kOpaque, ElementKind::kF32}) {
      for (const bool factors : {false, true}) {
        RigOptions options;
        options.topology = MakeTopology(2, 3);
        options.per_peer = 2;
        options.element = element;
        options.sum = sum;
        const kernels::SumTypes types = {element, sum == ElementKind::kOpaque ? element : sum};
        if (!kernels::CanSum(types) || (factors && !kernels::CanScale(types))) continue;
        options.row_bytes = 7 * static_cast<int64_t>(kernels::ElementBytes(element));
        options.factors = factors;
        options.exchange.reverse = true;
        options.exchange.indexed = true;
        all.push_back(options);
      }
    }
  }
  return all;
}

PlanFunction PlansItself() {
  return [](const int64_t*, const TakePlan&, bool*) { return Status::Ok(); };
}

RigOptions DrawOptions(std::mt19937_64* random) {
  const auto below = [&](uint64_t n) { return static_cast<int32_t>((*random)() % n); };
  RigOptions options;
  options.topology = MakeTopology(1 + below(4), 1 + below(4));
  options.scheduler = AllSchedulers()[(*random)() % AllSchedulers().size()];
  options.per_peer = 1 + below(3);
  options.row_bytes = 8 * (1 + below(20));
  options.exchange = Way(below(3) == 0, below(3) == 0);
  options.overlap = options.exchange.reverse && below(2) == 0;
  if (!options.exchange.transposed_table && below(2) == 0) options.exchange.plan = PlansItself();
  return options;
}

std::string Name(const RigOptions& options) {
  return std::to_string(options.topology.servers) + "x" + std::to_string(options.topology.devices_per_server) + ", " +
         std::string(planner::NameOf(options.scheduler)) + (options.exchange.reverse ? ", reverse" : "") +
         (options.exchange.transposed_table ? ", way back" : "") + (options.overlap ? ", overlap" : "") +
         (options.exchange.indexed ? ", indexed" : "") + (options.factors ? ", factors" : "") + ", rows of " +
         std::to_string(options.row_bytes) + " bytes";
}

}  // namespace fastjax::test
