// Declares the handlers of GPU programs as templates over a Platform, which says how a call gets its device and how it
// waits.
#ifndef FASTJAX_HANDLERS_GPU_BUNDLES_H_
#define FASTJAX_HANDLERS_GPU_BUNDLES_H_

#include <memory>
#include <utility>

#include "handlers/contract.h"
#include "handlers/gpu_calls.h"
#include "handlers/handlers.h"
#include "handlers/loopback_calls.h"
#include "handlers/operands.h"

namespace fastjax::handlers {

// A Platform has
//   Context           what XLA tells of the device, as Ffi::Bind().Ctx<Context>() decodes it
//   Outcome           ffi::Error or ffi::Future
//   kExchangeType, kPlanType, kLoopbackPlanType   names of the types of state
//   template <Call> static Outcome Run(Site*, ffi::RunId, Context, const Buffers&)   which runs one of the calls of
//   gpu_calls.h
template <typename Platform>
class GpuBundles {
 public:
  static Bundle Plan() {
    return {[](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, InstantiatePlan, ffi::Ffi::BindInstantiate().Attrs());
              return CallWithSiteType<PlanSite>(frame, handler, Platform::kPlanType);
            },
            [](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, Gathered<PlanOperands>(ExecutePlan),
                                     BindCall<PlanOperands>(BindContext<PlanSite>()));
              return CallWithSiteType<PlanSite>(frame, handler, Platform::kPlanType);
            }};
  }

  static Bundle Exchange() {
    return {[](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, InstantiateExchange, ffi::Ffi::BindInstantiate().Attrs());
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            },
            [](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, Gathered<ExchangeOperands>(ExecuteExchange),
                                     BindCall<ExchangeOperands>(BindContext<ExchangeSite>()));
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            }};
  }

  // An exchange of rows that indices name.
  static Bundle IndexedExchange() {
    return {[](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, InstantiateIndexedExchange, ffi::Ffi::BindInstantiate().Attrs());
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            },
            [](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, Gathered<GpuIndexedExchangeOperands>(ExecuteExchange),
                                     BindCall<GpuIndexedExchangeOperands>(BindContext<ExchangeSite>()));
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            }};
  }

  // An exchange that plans itself.
  static Bundle PlanExchange() {
    return {[](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, InstantiatePlanExchange, ffi::Ffi::BindInstantiate().Attrs());
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            },
            [](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, Gathered<PlanExchangeOperands>(ExecuteExchange),
                                     BindCall<PlanExchangeOperands>(BindContext<ExchangeSite>()));
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            }};
  }

  // All ranks of an exchange on one device.
  static Bundle Loopback() {
    return {[](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, InstantiateLoopback, ffi::Ffi::BindInstantiate().Attrs());
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            },
            [](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, Gathered<LoopbackOperands>(ExecuteLoopback),
                                     BindCall<LoopbackOperands>(BindContext<ExchangeSite>()));
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            }};
  }

  static Bundle LoopbackPlan() {
    return {[](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, InstantiateLoopbackPlan, ffi::Ffi::BindInstantiate().Attrs());
              return CallWithSiteType<LoopbackPlanSite>(frame, handler, Platform::kLoopbackPlanType);
            },
            [](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, Gathered<LoopbackPlanOperands>(ExecuteLoopbackPlan),
                                     BindCall<LoopbackPlanOperands>(BindContext<LoopbackPlanSite>()));
              return CallWithSiteType<LoopbackPlanSite>(frame, handler, Platform::kLoopbackPlanType);
            }};
  }

 private:
  using Context = typename ffi::CtxDecoding<typename Platform::Context>::Type;
  using Outcome = typename Platform::Outcome;

  struct ExchangeSite : GpuExchangeSite {
    inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  };
  struct PlanSite : GpuPlanSite {
    inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  };
  struct LoopbackPlanSite : GpuLoopbackPlanSite {
    inline static ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  };

  template <typename Site>
  static auto BindContext() {
    return ffi::Ffi::Bind()
        .template Ctx<ffi::State<Site>>()
        .template Ctx<ffi::RunId>()
        .template Ctx<typename Platform::Context>();
  }

  // Makes the state of a call site. `open` fills it from the attributes of the call.
  template <typename Site, typename Open>
  static ffi::ErrorOr<std::unique_ptr<Site>> Instantiate(const CustomCall& call, const ffi::Dictionary& dictionary,
                                                         Open open) {
    const auto attrs = DecodeAttributes(call, dictionary);
    if (!attrs.has_value()) return ffi::Unexpected(attrs.error());
    auto state = std::make_unique<Site>();
    if (ffi::Error error = open(*attrs, state.get()); error.failure()) return ffi::Unexpected(error);
    return state;
  }

  static ffi::ErrorOr<std::unique_ptr<PlanSite>> InstantiatePlan(ffi::Dictionary attrs) {
    return Instantiate<PlanSite>(GetContract().plan, attrs, OpenGpuPlan);
  }
  static ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiateExchange(ffi::Dictionary attrs) {
    return Instantiate<ExchangeSite>(GetContract().exchange, attrs, OpenGpuExchange);
  }
  static ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiateIndexedExchange(ffi::Dictionary attrs) {
    return Instantiate<ExchangeSite>(GetContract().gpu_indexed_exchange, attrs, OpenGpuIndexedExchange);
  }
  static ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiatePlanExchange(ffi::Dictionary attrs) {
    return Instantiate<ExchangeSite>(GetContract().plan_exchange, attrs, OpenGpuPlanExchange);
  }
  static ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiateLoopback(ffi::Dictionary attrs) {
    return Instantiate<ExchangeSite>(GetContract().loopback, attrs, OpenLoopback);
  }
  static ffi::ErrorOr<std::unique_ptr<LoopbackPlanSite>> InstantiateLoopbackPlan(ffi::Dictionary attrs) {
    return Instantiate<LoopbackPlanSite>(GetContract().loopback_plan, attrs, OpenLoopbackPlan);
  }

  static Outcome ExecutePlan(const PlanBuffers& buffers, PlanSite* state, ffi::RunId run, Context context) {
    return Platform::template Run<GpuPlanCall>(state, run, std::move(context), buffers);
  }
  static Outcome ExecuteExchange(const ExchangeBuffers& buffers, ExchangeSite* state, ffi::RunId run, Context context) {
    return Platform::template Run<GpuExchangeCall>(state, run, std::move(context), buffers);
  }
  static Outcome ExecuteLoopback(const ExchangeBuffers& buffers, ExchangeSite* state, ffi::RunId run, Context context) {
    return Platform::template Run<LoopbackCall>(state, run, std::move(context), buffers);
  }
  static Outcome ExecuteLoopbackPlan(const PlanBuffers& buffers, LoopbackPlanSite* state, ffi::RunId run,
                                     Context context) {
    return Platform::template Run<LoopbackPlanCall>(state, run, std::move(context), buffers);
  }
};

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_GPU_BUNDLES_H_
