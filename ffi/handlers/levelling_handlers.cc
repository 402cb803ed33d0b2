// Chooses which devices compute rows of popular experts, and deals rows to them. Both wait for nobody: each device that
// needs a result computes it.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "handlers/decode.h"
#include "planner/dealing.h"
#include "planner/levelling.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {
namespace {

using planner::LevellingShape;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

struct LevellingSite : SiteState {
  inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kTypeName = "fastjax_levelling_site_v2";
  const char* name;      // of the call, as messages have it
  LevellingShape shape;  // but for `here`, which an operand tells
  int64_t cost_rows = 0;

  ffi::Error Wrong(const std::string& what) const {
    return ffi::Error::InvalidArgument(std::string("fastjax: in ") + name + ", " + what);
  }
};

ffi::ErrorOr<std::unique_ptr<LevellingSite>> Instantiate(const CustomCall& call, const char* name,
                                                         const ffi::Dictionary& dictionary) {
  return MakeSite<LevellingSite>(DecodeAttributes(call, dictionary), [&](const CallAttributes& attrs, auto* site) {
    site->name = name;
    const auto positive = [](int64_t value) { return value > 0 && value <= kMost; };
    if (!positive(attrs.servers) || !positive(attrs.devices) || !positive(attrs.copies)) {
      return site->Wrong("servers, devices and copies must be positive");
    }
    if (attrs.cost_rows < 0 || attrs.cost_rows > kMost / attrs.copies) {
      return site->Wrong("copies * cost_rows must be between 0 and 2^31 - 1");
    }
    site->shape.servers = static_cast<int32_t>(attrs.servers);
    site->shape.devices = static_cast<int32_t>(attrs.devices);
    site->shape.copies = static_cast<int32_t>(attrs.copies);
    site->cost_rows = attrs.cost_rows;
    return ffi::Error::Success();
  });
}

// Of the call site, for as many experts as the last dimension has; none where devices cannot have equally many.
std::optional<LevellingShape> ShapeFor(const LevellingSite& site, const ffi::AnyBuffer& buffer) {
  const int64_t experts = buffer.dimensions().size() == 0 ? 0 : buffer.dimensions().back();
  const int64_t ranks = int64_t{site.shape.servers} * site.shape.devices;
  if (experts <= 0 || experts > kMost || experts % ranks != 0) return std::nullopt;
  LevellingShape shape = site.shape;
  shape.here = static_cast<int32_t>(experts / ranks);
  return shape;
}

// The arrays of an operand, or of the result, that has one for each matrix of a batch.
struct Arrays {
  int32_t* first = nullptr;
  size_t length = 0;  // of each
  size_t count = 0;

  int32_t* at(size_t i) const { return first + i * length; }
};

// None where the buffer has other integers than int32, or its last dimensions are others.
std::optional<Arrays> TakeArrays(const ffi::AnyBuffer& buffer, const std::vector<size_t>& shape) {
  if (buffer.element_type() != ffi::DataType::S32) return std::nullopt;
  const auto dims = buffer.dimensions();
  if (dims.size() < shape.size()) return std::nullopt;
  size_t length = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (static_cast<size_t>(dims[dims.size() - shape.size() + i]) != shape[i]) return std::nullopt;
    length *= shape[i];
  }
  return Arrays{static_cast<int32_t*>(buffer.untyped_data()), length, buffer.element_count() / length};
}

// Rows must not be negative, and fit int32 together. `of` says what the rows at a place are of.
template <typename Name>
ffi::Error CheckRows(const LevellingSite& site, const int32_t* rows, size_t length, const Name& of) {
  int64_t total = 0;
  int32_t all = 0;  // bits
  for (size_t i = 0; i < length; ++i) {
    total += rows[i];
    all |= rows[i];
  }
  if (all < 0) {
    size_t i = 0;
    while (rows[i] >= 0) ++i;
    return site.Wrong(of(i) + " has " + std::to_string(rows[i]) + " rows, which must not be negative.");
  }
  if (total > kMost) {
    return site.Wrong("there are " + std::to_string(total) + " rows, and more than 2^31 - 1 cannot be counted.");
  }
  return ffi::Error::Success();
}

std::string Name(const char* of_row, size_t row, const char* of_column, size_t column) {
  return of_column + std::to_string(column) + of_row + std::to_string(row);
}

ffi::Error ExecuteLevel(LevellingSite* site, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> result,
                        ffi::Dictionary /*attrs*/) {
  const auto buffers = site->Take(operands, *result);
  if (!buffers.has_value()) return ToError(UnexpectedOperands());
  const ffi::AnyBuffer& given = (*buffers)[Operand::kRows];
  const auto shape = ShapeFor(*site, given);
  if (!shape.has_value()) return ToError(UnexpectedOperands());
  const auto experts = static_cast<size_t>(shape->experts());
  const size_t slots = static_cast<size_t>(shape->ranks()) * shape->copies;
  const auto rows = TakeArrays(given, {experts});
  const auto out = TakeArrays(*result, {2 * slots + experts});
  if (!rows.has_value() || !out.has_value() || out->count != rows->count) return ToError(UnexpectedOperands());
  // Devices come at once, so the call site cannot keep it for all of them.
  planner::Leveller leveller(*shape, site->cost_rows);
  for (size_t i = 0; i < rows->count; ++i) {
    const auto of = [](size_t expert) { return "expert " + std::to_string(expert); };
    if (ffi::Error error = CheckRows(*site, rows->at(i), experts, of); error.failure()) return error;
    leveller.Level(rows->at(i), {out->at(i), out->at(i) + slots});
  }
  return ffi::Error::Success();
}

ffi::Error ExecuteDeal(LevellingSite* site, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> result,
                       ffi::Dictionary /*attrs*/) {
  const auto buffers = site->Take(operands, *result);
  if (!buffers.has_value()) return ToError(UnexpectedOperands());
  const ffi::AnyBuffer& given = (*buffers)[Operand::kCounts];
  const auto shape = ShapeFor(*site, given);
  if (!shape.has_value()) return ToError(UnexpectedOperands());
  const auto ranks = static_cast<size_t>(shape->ranks());
  const auto experts = static_cast<size_t>(shape->experts());
  const auto groups = static_cast<size_t>(shape->groups());
  const auto counts = TakeArrays(given, {ranks, experts});
  const auto slots = TakeArrays((*buffers)[Operand::kSlots], {ranks, static_cast<size_t>(shape->copies)});
  const auto rows = TakeArrays((*buffers)[Operand::kRows], {ranks, groups});
  const auto out = TakeArrays(*result, {2 * ranks * ranks * groups});
  if (!counts.has_value() || !slots.has_value() || !rows.has_value() || !out.has_value() ||
      slots->count != counts->count || rows->count != counts->count || out->count != counts->count) {
    return ToError(UnexpectedOperands());
  }
  planner::Dealer dealer(*shape);
  for (size_t i = 0; i < counts->count; ++i) {
    const auto of_sender = [&](size_t place) {
      return Name(" of sender ", place / experts, "expert ", place % experts);
    };
    const auto of_device = [&](size_t place) { return Name(" of device ", place / groups, "group ", place % groups); };
    ffi::Error error = CheckRows(*site, counts->at(i), counts->length, of_sender);
    if (error.success()) error = CheckRows(*site, rows->at(i), rows->length, of_device);
    if (error.failure()) return error;
    const std::string wrong = planner::FindWrongSlot(*shape, slots->at(i));
    if (!wrong.empty()) return site->Wrong(wrong);
    dealer.Deal(counts->at(i), slots->at(i), rows->at(i), {out->at(i), out->at(i) + out->length / 2});
  }
  return ffi::Error::Success();
}

auto InstantiateLevel(ffi::Dictionary attrs) { return Instantiate(GetContract().level, "level", attrs); }
auto InstantiateDeal(ffi::Dictionary attrs) { return Instantiate(GetContract().deal, "deal", attrs); }

auto ExecuteBinding() {
  return ffi::Ffi::Bind().Ctx<ffi::State<LevellingSite>>().RemainingArgs().Ret<ffi::AnyBuffer>().Attrs();
}

XLA_FFI_DEFINE_HANDLER(kInstantiateLevel, InstantiateLevel, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateDeal, InstantiateDeal, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecuteLevel, ExecuteLevel, ExecuteBinding());
XLA_FFI_DEFINE_HANDLER(kExecuteDeal, ExecuteDeal, ExecuteBinding());

}  // namespace

Target LevelTarget() { return TargetOf<LevellingSite, kInstantiateLevel, kExecuteLevel>(GetContract().level); }
Target DealTarget() { return TargetOf<LevellingSite, kInstantiateDeal, kExecuteDeal>(GetContract().deal); }

}  // namespace fastjax::handlers
