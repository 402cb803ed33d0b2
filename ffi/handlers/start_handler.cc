// The calls between which an exchange of CPU devices runs. The first gives the exchange, which is a call of its own,
// its place in the order of exchanges; the last keeps the memory of operands until the rows have come.
#include <cstring>
#include <memory>
#include <vector>

#include "handlers/decode.h"
#include "rendezvous/turns.h"
#include "xla/ffi/api/ffi.h"

namespace fastjax::handlers {
namespace {

struct StartSite : SiteState {
  StartSite() = default;
  StartSite(const StartSite&) = delete;
  StartSite& operator=(const StartSite&) = delete;
  ~StartSite() { Turns::Get().Forget(this); }

  inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kTypeName = "fastjax_start_site_v2";
};

bool IsToken(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::DataType::U32 && buffer.size_bytes() == sizeof(Turns::Token);
}

ffi::ErrorOr<std::unique_ptr<StartSite>> Instantiate(ffi::Dictionary attrs) {
  const auto nothing = [](const CallAttributes&, StartSite*) { return ffi::Error::Success(); };
  return MakeSite<StartSite>(DecodeAttributes(GetContract().start, attrs), nothing);
}

// Of the arrays that it waits for, some are tokens; others that look like them are numbers of no turn.
ffi::Error Start(StartSite* site, ffi::RemainingArgs after, ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
  site->Receive();
  if (!IsToken(*result)) return ToError(UnexpectedOperands());
  std::vector<Turns::Token> earlier;
  for (size_t i = 0; i < after.size(); ++i) {
    const auto array = after.get<ffi::AnyBuffer>(i);
    if (!array.has_value() || !IsToken(*array)) continue;
    earlier.emplace_back();
    std::memcpy(&earlier.back(), array->untyped_data(), sizeof(Turns::Token));
  }
  const Turns::Token token = Turns::Get().Add(site, earlier);
  std::memcpy(result->untyped_data(), &token, sizeof(token));
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kStart, Start,
                       ffi::Ffi::Bind().Ctx<ffi::State<StartSite>>().RemainingArgs().Ret<ffi::AnyBuffer>().Attrs());

}  // namespace

Bundle Start() { return BundleOf<StartSite, kInstantiate, kStart>(); }

std::vector<std::pair<int64_t, int32_t>> TakeRecordOfTurns() { return Turns::Get().TakeRecord(); }

}  // namespace fastjax::handlers
