#include "handlers/exchange_buffers.h"

#include <string>
#include <utility>

namespace fastjax::handlers {

namespace {

int64_t Count(const ffi::AnyBuffer& buffer) { return static_cast<int64_t>(buffer.element_count()); }

bool IsWords(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::DataType::S32 && buffer.dimensions().size() == 1;
}

// Adds indices and factors of an indexed exchange. Its slices are ranges of indices, so operand space has as many rows
// as there are indices. In reverse, rows are summed, and the result may have a wider type. On GPUs, indices
// stay on the device. False if shapes do not fit.
bool DecodeIndexed(const Buffers& buffers, bool reverse, ExchangeArgs* args) {
  const ffi::AnyBuffer& indices = buffers[Operand::kIndices];
  if (!IsWords(indices)) return false;
  const ffi::AnyBuffer& given = buffers[Operand::kFactors];
  const int64_t result_bytes = RowBytes(buffers.result);
  const int64_t factors = Count(given);
  if (reverse) {
    args->sum = DecodeElement(buffers.result.element_type());
    const kernels::SumTypes types = args->sum_types();
    const auto elements = [](int64_t bytes, kernels::ElementKind kind) {
      return bytes / static_cast<int64_t>(kernels::ElementBytes(kind));
    };
    if (elements(args->row_bytes, types.element) != elements(result_bytes, types.sum)) return false;
    if (types.element != types.sum && !kernels::CanSum(types)) return false;
    if (factors > 0) {
      if (factors != args->source_rows || !kernels::CanScale(types)) return false;
      if (DecodeElement(given.element_type()) != types.sum) return false;
      args->factors = static_cast<const std::byte*>(given.untyped_data());
    }
  } else if (args->row_bytes != result_bytes || factors > 0) {
    return false;
  }
  int64_t* const rows = reverse ? &args->destination_rows : &args->source_rows;
  args->indexed_rows = *rows;
  *rows = Count(indices);
  const auto* const words = static_cast<const int32_t*>(indices.untyped_data());
  if (!buffers.Has(Operand::kStarts)) {
    args->indices = words;
    return true;
  }
  const ffi::AnyBuffer& starts = buffers[Operand::kStarts];
  if (!IsWords(starts)) return false;
  args->device_indices = words;
  args->device_starts = static_cast<const int32_t*>(starts.untyped_data());
  return Count(starts) == (reverse ? args->indexed_rows + 1 : 0);
}

}  // namespace

bool DecodeExchange(const Buffers& buffers, const CallSite& site, bool reverse, ExchangeArgs* args) {
  const bool of_all = !buffers.Has(Operand::kPartition);
  const int64_t ranks = of_all ? site.group_size : 0;
  const size_t rows_at = of_all ? 1 : 0;  // the dimension of rows
  const auto in = DecodeInts(buffers[Operand::kInputOffsets], ranks);
  const auto send = DecodeInts(buffers[Operand::kSendSizes], ranks);
  const auto out = DecodeInts(buffers[Operand::kOutputOffsets], ranks);
  const auto recv = DecodeInts(buffers[Operand::kRecvSizes], ranks);
  if (!in || !send || !out || !recv || in->size != send->size || out->size != send->size || recv->size != send->size ||
      send->size % site.group_size != 0) {
    return false;
  }
  const ffi::AnyBuffer& source = buffers[Operand::kSource];
  const ffi::AnyBuffer& result = buffers.result;
  for (const ffi::AnyBuffer* rows : {&source, &result}) {
    if (rows->dimensions().size() <= rows_at || (of_all && rows->dimensions().front() != ranks)) return false;
  }
  const bool indexed = buffers.Has(Operand::kIndices);
  args->row_bytes = RowBytes(source, rows_at + 1);
  if (!indexed && args->row_bytes != RowBytes(result, rows_at + 1)) return false;
  if (buffers[Operand::kBase].size_bytes() != result.size_bytes()) return false;
  args->source = static_cast<const std::byte*>(source.untyped_data());
  args->source_rows = source.dimensions()[rows_at];
  args->destination = static_cast<std::byte*>(result.untyped_data());
  args->destination_rows = result.dimensions()[rows_at];
  args->element = DecodeElement(source.element_type());
  args->input_offsets = *in;
  args->send_sizes = *send;
  args->output_offsets = *out;
  args->recv_sizes = *recv;
  if (buffers.Has(Operand::kTable)) {
    const ffi::AnyBuffer& table = buffers[Operand::kTable];
    if (!IsWords(table)) return false;
    args->table = static_cast<const int32_t*>(table.untyped_data());
    args->table_words = Count(table);
  }
  return !indexed || DecodeIndexed(buffers, reverse, args);
}

bool DecodeCounts(const Buffers& buffers, const CallSite& site, int64_t table_words, CountsArgs* args) {
  const auto sizes = DecodeInts(buffers[Operand::kSendSizes], buffers.Has(Operand::kPartition) ? 0 : site.group_size);
  const bool plans = table_words > 0;
  if (!sizes || !IsWords(buffers.result) || (plans && sizes->size % site.group_size != 0)) return false;
  args->send_sizes = *sizes;
  args->table_words = static_cast<int32_t*>(buffers.result.untyped_data());
  const int64_t words = Count(buffers.result);
  if (plans && words == table_words) return true;
  args->gathered = args->table_words + table_words;
  return words == table_words + site.group_size * sizes->size;
}

ffi::ErrorOr<CallAttributes> DecodeExchangeCall(const ffi::Dictionary& dictionary) {
  auto attrs = DecodeAttributes(GetContract().exchange, dictionary);
  if (!attrs.has_value()) return attrs;
  const auto refused = [](const char* why) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(std::string("fastjax: in an exchange, ") + why));
  };
  const auto has = [&](Operand operand) { return attrs->operands.Has(operand); };
  if (attrs->started && !has(Operand::kPartition)) return refused("nothing starts that one device does for all ranks");
  if (has(Operand::kIndices) != has(Operand::kFactors)) return refused("indices and factors come together");
  if (has(Operand::kStarts) && !has(Operand::kIndices)) return refused("starts are of indices, and there are none");
  if (has(Operand::kStarts) && has(Operand::kToken)) return refused("the exchange of a start takes no starts of rows");
  if (has(Operand::kTable)) {
    if (!has(Operand::kPartition)) return refused("all ranks on one device take no table, which is of one rank");
    return attrs;
  }
  if (attrs->scheduler < 0) return refused("there is neither a table nor a scheduler to make one");
  if (!has(Operand::kPartition) && (has(Operand::kIndices) || has(Operand::kToken))) {
    return refused("all ranks on one device take neither indices nor a token");
  }
  return attrs;
}

ffi::ErrorOr<ExchangeOptions> DecodeExchangeOptions(const CallAttributes& attrs,
                                                    const std::shared_ptr<const CallSite>& site) {
  ExchangeOptions options;
  options.reverse = attrs.reverse;
  options.transposed_table = attrs.transposed_table;
  options.check_overlaps = attrs.check_overlaps;
  options.drop = attrs.drop;
  options.indexed = attrs.operands.Has(Operand::kIndices);
  if (!attrs.operands.Has(Operand::kTable)) {
    auto planning = DecodePlanning(attrs, site);
    if (!planning.has_value()) return ffi::Unexpected(planning.error());
    options.plan = std::move(planning->plan);
  }
  return options;
}

}  // namespace fastjax::handlers
