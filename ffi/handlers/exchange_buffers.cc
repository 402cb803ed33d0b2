#include "handlers/exchange_buffers.h"

#include <utility>

#include "handlers/planning.h"

namespace fastjax::handlers {

bool DecodeExchange(const ExchangeBuffers& buffers, const CallSite& site, ExchangeArgs* args) {
  const auto in = DecodeInts(buffers.input_offsets);
  const auto send = DecodeInts(buffers.send_sizes);
  const auto out = DecodeInts(buffers.output_offsets);
  const auto recv = DecodeInts(buffers.recv_sizes);
  const ffi::AnyBuffer& source = buffers.source;
  const ffi::AnyBuffer& result = buffers.result;
  if (!in || !send || !out || !recv || in->size != send->size || out->size != send->size || recv->size != send->size ||
      send->size % site.group_size != 0 || source.dimensions().size() == 0 || result.dimensions().size() == 0 ||
      (!buffers.indices.has_value() && RowBytes(source) != RowBytes(result)) ||
      buffers.base.size_bytes() != result.size_bytes()) {
    return false;
  }
  args->source = static_cast<const std::byte*>(source.untyped_data());
  args->source_rows = source.dimensions().front();
  args->destination = static_cast<std::byte*>(result.untyped_data());
  args->destination_rows = result.dimensions().front();
  args->row_bytes = RowBytes(source);
  args->element = DecodeElement(source.element_type());
  args->input_offsets = *in;
  args->send_sizes = *send;
  args->output_offsets = *out;
  args->recv_sizes = *recv;
  if (buffers.table.has_value()) {
    args->table = buffers.table->typed_data();
    args->table_words = static_cast<int64_t>(buffers.table->element_count());
  }
  return true;
}

bool DecodeIndexed(const ExchangeBuffers& buffers, bool reverse, ExchangeArgs* args) {
  if (!buffers.indices.has_value() || !buffers.factors.has_value()) return false;
  const Indices& indices = *buffers.indices;
  const ffi::AnyBuffer& given = *buffers.factors;
  const int64_t result_bytes = RowBytes(buffers.result);
  const auto factors = static_cast<int64_t>(given.element_count());
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
  *rows = static_cast<int64_t>(indices.element_count());
  if (!buffers.starts.has_value()) {
    args->indices = indices.typed_data();
    return true;
  }
  args->device_indices = indices.typed_data();
  args->device_starts = buffers.starts->typed_data();
  return static_cast<int64_t>(buffers.starts->element_count()) == (reverse ? args->indexed_rows + 1 : 0);
}

ffi::ErrorOr<ExchangeOptions> DecodeExchangeOptions(const CallAttributes& attrs,
                                                    const std::shared_ptr<const CallSite>& site, bool plans) {
  ExchangeOptions options;
  options.reverse = attrs.reverse;
  options.transposed_table = attrs.transposed_table;
  options.check_overlaps = attrs.check_overlaps;
  if (plans) {
    auto planning = DecodePlanning(attrs, site);
    if (!planning.has_value()) return ffi::Unexpected(planning.error());
    options.plan = std::move(planning->slices);
  }
  return options;
}

}  // namespace fastjax::handlers
