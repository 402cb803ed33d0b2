// Declares the operands of each custom call: names, types and order, bound once for all platforms.
#ifndef FASTJAX_HANDLERS_OPERANDS_H_
#define FASTJAX_HANDLERS_OPERANDS_H_

#include <array>
#include <iterator>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {

namespace ffi = ::xla::ffi;

using Table = ffi::BufferR1<ffi::DataType::S32>;
using Indices = ffi::BufferR1<ffi::DataType::S32>;

template <typename... Types>
struct TypeList {
  static constexpr size_t kSize = sizeof...(Types);
};

// What each call below has:
//   kNames    of its operands, in order
//   Types     of its operands, in order
//   Result    type of its result
//   Buffers   all of them, as handlers take them, where they take any
//   Gather    makes Buffers of the result and the operands

// The buffers of any form of an exchange.
struct ExchangeBuffers {
  ffi::AnyBuffer result;
  ffi::AnyBuffer source;
  ffi::AnyBuffer base;
  ffi::AnyBuffer input_offsets;
  ffi::AnyBuffer send_sizes;
  ffi::AnyBuffer output_offsets;
  ffi::AnyBuffer recv_sizes;
  std::optional<ffi::AnyBuffer> partition = std::nullopt;  // none where one device executes all ranks, or none yet
  std::optional<Table> table = std::nullopt;               // none where the exchange plans itself
  std::optional<Indices> indices = std::nullopt;           // of rows, where the exchange is indexed
  std::optional<Indices> starts = std::nullopt;            // in reverse on GPUs, of each row's entries in `indices`
  std::optional<ffi::AnyBuffer> factors = std::nullopt;    // and of those that are summed, or of length 0
};

template <typename... Lists>
struct JoinTypes;
template <typename... Types>
struct JoinTypes<TypeList<Types...>> {
  using Joined = TypeList<Types...>;
};
template <typename... A, typename... B, typename... Rest>
struct JoinTypes<TypeList<A...>, TypeList<B...>, Rest...> : JoinTypes<TypeList<A..., B...>, Rest...> {};

template <size_t... kSizes>
constexpr auto JoinNames(const std::array<const char*, kSizes>&... lists) {
  std::array<const char*, (kSizes + ...)> all{};
  size_t count = 0;
  const auto append = [&](const auto& list) {
    for (const char* const name : list) all[count++] = name;
  };
  (append(lists), ...);
  return all;
}

template <bool kAny, typename... Names>
constexpr auto NamesIf(Names... names) {
  if constexpr (kAny) {
    return std::array<const char*, sizeof...(Names)>{names...};
  } else {
    return std::array<const char*, 0>{};
  }
}

// One form of an exchange: which operands it has besides rows and their metadata.
template <bool kTable, bool kIndexed, bool kPartition, bool kStarts = false>
struct FormOfExchange {
  static constexpr auto kNames = JoinNames(
      std::array<const char*, 6>{"source", "base", "input_offsets", "send_sizes", "output_offsets", "recv_sizes"},
      NamesIf<kTable>("table"), NamesIf<kIndexed>("indices", "factors"), NamesIf<kStarts>("starts"),
      NamesIf<kPartition>("partition"));
  using Types = typename JoinTypes<
      TypeList<ffi::AnyBuffer, ffi::AnyBuffer, ffi::AnyBuffer, ffi::AnyBuffer, ffi::AnyBuffer, ffi::AnyBuffer>,
      std::conditional_t<kTable, TypeList<Table>, TypeList<>>,
      std::conditional_t<kIndexed, TypeList<Indices, ffi::AnyBuffer>, TypeList<>>,
      std::conditional_t<kStarts, TypeList<Indices>, TypeList<>>,
      std::conditional_t<kPartition, TypeList<ffi::AnyBuffer>, TypeList<>>>::Joined;
  using Result = ffi::AnyBuffer;
  using Buffers = ExchangeBuffers;

  template <typename... Rest>
  static Buffers Gather(const Result& result, const ffi::AnyBuffer& source, const ffi::AnyBuffer& base,
                        const ffi::AnyBuffer& input_offsets, const ffi::AnyBuffer& send_sizes,
                        const ffi::AnyBuffer& output_offsets, const ffi::AnyBuffer& recv_sizes, const Rest&... rest) {
    Buffers buffers{result, source, base, input_offsets, send_sizes, output_offsets, recv_sizes};
    [[maybe_unused]] const auto more = std::tie(rest...);
    if constexpr (kTable) buffers.table = std::get<0>(more);
    if constexpr (kIndexed) {
      buffers.indices = std::get<1>(more);
      buffers.factors = std::get<2>(more);
    }
    if constexpr (kStarts) buffers.starts = std::get<3>(more);
    if constexpr (kPartition) buffers.partition = std::get<sizeof...(Rest) - 1>(more);
    return buffers;
  }
};

using LoopbackOperands = FormOfExchange<false, false, false>;
using PlanExchangeOperands = FormOfExchange<false, false, true>;
using ExchangeOperands = FormOfExchange<true, false, true>;
using IndexedExchangeOperands = FormOfExchange<true, true, true>;
using GpuIndexedExchangeOperands = FormOfExchange<true, true, true, true>;
// Operands of the calls that copy the operands of an exchange. Their result is `base`, with the id of the copies.
using StageOperands = FormOfExchange<true, false, false>;
using IndexedStageOperands = FormOfExchange<true, true, false>;

// Operands of the call that exchanges the copies. It has no others, since XLA would keep them while rows travel.
struct StagedExchangeBuffers {
  ffi::AnyBuffer result;
  ffi::AnyBuffer base;
  ffi::AnyBuffer partition;
};

struct StagedExchangeOperands {
  static constexpr const char* kNames[] = {"base", "partition"};
  using Types = TypeList<ffi::AnyBuffer, ffi::AnyBuffer>;
  using Result = ffi::AnyBuffer;
  using Buffers = StagedExchangeBuffers;

  static Buffers Gather(const Result& result, const ffi::AnyBuffer& base, const ffi::AnyBuffer& partition) {
    return {result, base, partition};
  }
};

struct PlanBuffers {
  Table table;  // and after it the sizes of all devices, by position, where they are wanted
  ffi::AnyBuffer send_sizes;
  std::optional<ffi::AnyBuffer> partition = std::nullopt;  // none where one device executes all ranks
};

struct PlanOperands {
  static constexpr const char* kNames[] = {"send_sizes", "partition"};
  using Types = TypeList<ffi::AnyBuffer, ffi::AnyBuffer>;
  using Result = Table;
  using Buffers = PlanBuffers;

  static Buffers Gather(const Table& table, const ffi::AnyBuffer& send_sizes, const ffi::AnyBuffer& partition) {
    return {table, send_sizes, partition};
  }
};

struct GatherOperands : PlanOperands {
  static constexpr const char* kNames[] = {"counts", "partition"};
};

struct LoopbackPlanOperands {
  static constexpr const char* kNames[] = {"send_sizes"};
  using Types = TypeList<ffi::AnyBuffer>;
  using Result = Table;
  using Buffers = PlanBuffers;

  static Buffers Gather(const Table& table, const ffi::AnyBuffer& send_sizes) { return {table, send_sizes}; }
};

struct EmptyOperands {
  static constexpr const char* kNames[] = {"anything"};
  using Types = TypeList<ffi::AnyBuffer>;
  using Result = ffi::AnyBuffer;
};

struct AfterOperands {
  static constexpr const char* kNames[] = {"value", "earlier"};
  using Types = TypeList<ffi::AnyBuffer, ffi::AnyBuffer>;
  using Result = ffi::AnyBuffer;
};

template <typename Call>
std::vector<const char*> NamesOf() {
  static_assert(std::size(Call::kNames) == Call::Types::kSize);
  return {std::begin(Call::kNames), std::end(Call::kNames)};
}

// XLA's bindings can be copied and moved only into longer ones.
template <typename Result, typename Binding>
auto BindEach(Binding&& binding, TypeList<> /*none*/) {
  return std::forward<Binding>(binding).template Ret<Result>();
}
template <typename Result, typename Binding, typename Type, typename... Rest>
auto BindEach(Binding&& binding, TypeList<Type, Rest...> /*types*/) {
  return BindEach<Result>(std::forward<Binding>(binding).template Arg<Type>(), TypeList<Rest...>());
}

// Appends the operands and the result of a call to `binding`.
template <typename Call, typename Binding>
auto BindOperands(Binding&& binding) {
  return BindEach<typename Call::Result>(std::forward<Binding>(binding), typename Call::Types());
}

// Does the same, and appends the attributes.
template <typename Call, typename Binding>
auto BindCall(Binding&& binding) {
  return BindOperands<Call>(std::forward<Binding>(binding)).Attrs();
}

template <typename Call, typename Outcome, typename... Context, typename... Types>
auto GatherEach(Outcome (*body)(const typename Call::Buffers&, Context...), TypeList<Types...> /*types*/) {
  return [body](Context... context, Types... operands, ffi::Result<typename Call::Result> result, ffi::Dictionary) {
    return body(Call::Gather(*result, operands...), std::move(context)...);
  };
}

// Adapts a body that takes Buffers to XLA, which passes operands one by one. Context: arguments bound before them.
template <typename Call, typename Outcome, typename... Context>
auto Gathered(Outcome (*body)(const typename Call::Buffers&, Context...)) {
  return GatherEach<Call>(body, typename Call::Types());
}

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_OPERANDS_H_
