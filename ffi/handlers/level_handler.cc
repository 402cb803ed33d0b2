// Deals rows of experts to devices. It waits for nobody: each device that needs the result computes it.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "handlers/decode.h"
#include "handlers/handlers.h"
#include "handlers/operands.h"
#include "planner/levelling.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {
namespace {

using planner::LevellingShape;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

struct LevelSite {
  static ffi::TypeId id;
  HandedOver handed_over;
  OperandList operands;
  LevellingShape shape;  // but for `here`, which the operand tells
};

ffi::TypeId LevelSite::id = XLA_FFI_UNKNOWN_TYPE_ID;

ffi::Error Wrong(const std::string& what) { return ffi::Error::InvalidArgument("fastjax: in level, " + what); }

ffi::ErrorOr<std::unique_ptr<LevelSite>> Instantiate(ffi::Dictionary dictionary) {
  const auto attrs = DecodeAttributes(GetContract().level, dictionary);
  if (!attrs.has_value()) return ffi::Unexpected(attrs.error());
  const auto operands = DecodeOperands(GetContract().level, *attrs);
  if (!operands.has_value()) return ffi::Unexpected(operands.error());
  const auto positive = [](int64_t value) { return value > 0 && value <= kMost; };
  if (!positive(attrs->servers) || !positive(attrs->devices) || !positive(attrs->copies)) {
    return ffi::Unexpected(Wrong("servers, devices and copies must be positive"));
  }
  if (attrs->cost_rows < 0 || attrs->cost_rows > kMost / attrs->copies) {
    return ffi::Unexpected(Wrong("copies * cost_rows must be between 0 and 2^31 - 1"));
  }
  auto site = std::make_unique<LevelSite>();
  site->operands = *operands;
  site->shape.servers = static_cast<int32_t>(attrs->servers);
  site->shape.devices = static_cast<int32_t>(attrs->devices);
  site->shape.copies = static_cast<int32_t>(attrs->copies);
  site->shape.cost_rows = attrs->cost_rows;
  site->handed_over.Publish();
  return site;
}

// Matrices of counts, and the words that each results in.
struct Matrices {
  LevellingShape shape;
  size_t count = 1;
  size_t counts = 0;  // of each
  size_t slots = 0;
  size_t sizes = 0;

  size_t words() const { return slots + 2 * sizes; }
};

std::optional<Matrices> MatricesOf(const LevelSite& site, const ffi::AnyBuffer& counts, const ffi::AnyBuffer& result) {
  const auto dims = counts.dimensions();
  const int64_t ranks = int64_t{site.shape.servers} * site.shape.devices;
  if (counts.element_type() != ffi::DataType::S32 || result.element_type() != ffi::DataType::S32) return std::nullopt;
  if (dims.size() < 2 || dims[dims.size() - 2] != ranks) return std::nullopt;
  const int64_t experts = dims.back();
  if (experts <= 0 || experts > kMost || experts % ranks != 0) return std::nullopt;
  Matrices matrices;
  matrices.shape = site.shape;
  matrices.shape.here = static_cast<int32_t>(experts / ranks);
  const auto senders = static_cast<size_t>(ranks);
  matrices.counts = senders * static_cast<size_t>(experts);
  matrices.count = counts.element_count() / matrices.counts;
  matrices.slots = senders * static_cast<size_t>(site.shape.copies);
  matrices.sizes = senders * (static_cast<size_t>(experts) + matrices.slots);
  if (result.element_count() != matrices.count * matrices.words()) return std::nullopt;
  return matrices;
}

// Counts must not be negative, and fit int32 together.
ffi::Error CheckCounts(const int32_t* counts, const Matrices& matrices) {
  int64_t total = 0;
  int32_t all = 0;  // bits
  for (size_t i = 0; i < matrices.counts; ++i) {
    total += counts[i];
    all |= counts[i];
  }
  if (all < 0) {
    size_t i = 0;
    while (counts[i] >= 0) ++i;
    const auto experts = static_cast<size_t>(matrices.shape.experts());
    return Wrong("sender " + std::to_string(i / experts) + " has " + std::to_string(counts[i]) + " rows for expert " +
                 std::to_string(i % experts) + ". Counts must not be negative.");
  }
  if (total > kMost) {
    return Wrong("there are " + std::to_string(total) + " rows, and more than 2^31 - 1 cannot be counted.");
  }
  return ffi::Error::Success();
}

ffi::Error Execute(LevelSite* site, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> result,
                   ffi::Dictionary /*attrs*/) {
  site->handed_over.Receive();
  const auto counts = site->operands.Find(Operand::kCounts, operands);
  if (!counts.has_value() || !site->operands.Fits(operands)) return ToError(UnexpectedOperands());
  const auto matrices = MatricesOf(*site, *counts, *result);
  if (!matrices.has_value()) return ToError(UnexpectedOperands());
  // Devices come at once, so the call site cannot keep it for all of them.
  planner::Leveller leveller(matrices->shape);
  const auto* in = static_cast<const int32_t*>(counts->untyped_data());
  auto* out = static_cast<int32_t*>(result->untyped_data());
  for (size_t i = 0; i < matrices->count; ++i, in += matrices->counts, out += matrices->words()) {
    if (ffi::Error error = CheckCounts(in, *matrices); error.failure()) return error;
    leveller.Level(in, {out, out + matrices->slots, out + matrices->slots + matrices->sizes});
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind().Ctx<ffi::State<LevelSite>>().RemainingArgs().Ret<ffi::AnyBuffer>().Attrs());

constexpr const char* kTypeName = "fastjax_level_site_v2";

}  // namespace

Bundle Level() {
  return {[](XLA_FFI_CallFrame* frame) { return CallWithSiteType<LevelSite>(frame, kInstantiate, kTypeName); },
          [](XLA_FFI_CallFrame* frame) { return CallWithSiteType<LevelSite>(frame, kExecute, kTypeName); }};
}

}  // namespace fastjax::handlers
