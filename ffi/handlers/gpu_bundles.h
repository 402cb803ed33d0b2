// The handlers of GPU programs, for each way of running them: a Platform says how a call gets its device and how it
// waits.
#ifndef FASTJAX_HANDLERS_GPU_BUNDLES_H_
#define FASTJAX_HANDLERS_GPU_BUNDLES_H_

#include <memory>

#include "handlers/gpu_calls.h"
#include "handlers/handlers.h"
#include "handlers/loopback_calls.h"

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
              XLA_FFI_DEFINE_HANDLER(handler, ExecutePlan,
                                     BindContext<PlanSite>()
                                         .template Arg<ffi::AnyBuffer>()
                                         .template Arg<ffi::AnyBuffer>()
                                         .template Ret<Table>()
                                         .Attrs());
              return CallWithSiteType<PlanSite>(frame, handler, Platform::kPlanType);
            }};
  }

  static Bundle Exchange() {
    return {[](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            },
            [](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, Execute,
                                     BindExchange(BindContext<ExchangeSite>())
                                         .template Arg<Table>()
                                         .template Arg<ffi::AnyBuffer>()
                                         .template Ret<ffi::AnyBuffer>()
                                         .Attrs());
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            }};
  }

  // An exchange that plans itself.
  static Bundle PlanExchange() {
    return {[](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, InstantiatePlanning, ffi::Ffi::BindInstantiate().Attrs());
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            },
            [](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, ExecutePlanning,
                                     BindExchange(BindContext<ExchangeSite>())
                                         .template Arg<ffi::AnyBuffer>()
                                         .template Ret<ffi::AnyBuffer>()
                                         .Attrs());
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
              XLA_FFI_DEFINE_HANDLER(handler, ExecuteLoopback,
                                     BindExchange(BindContext<ExchangeSite>()).template Ret<ffi::AnyBuffer>().Attrs());
              return CallWithSiteType<ExchangeSite>(frame, handler, Platform::kExchangeType);
            }};
  }

  static Bundle LoopbackPlan() {
    return {[](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(handler, InstantiateLoopbackPlan, ffi::Ffi::BindInstantiate().Attrs());
              return CallWithSiteType<LoopbackPlanSite>(frame, handler, Platform::kLoopbackPlanType);
            },
            [](XLA_FFI_CallFrame* frame) {
              XLA_FFI_DEFINE_HANDLER(
                  handler, ExecuteLoopbackPlan,
                  BindContext<LoopbackPlanSite>().template Arg<ffi::AnyBuffer>().template Ret<Table>().Attrs());
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

  static ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Open(const ffi::Dictionary& attrs, bool plans) {
    auto state = std::make_unique<ExchangeSite>();
    if (ffi::Error error = OpenGpuExchange(attrs, plans, state.get()); error.failure()) return ffi::Unexpected(error);
    return state;
  }
  static ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiateLoopback(ffi::Dictionary attrs) {
    auto state = std::make_unique<ExchangeSite>();
    if (ffi::Error error = OpenLoopback(attrs, state.get()); error.failure()) return ffi::Unexpected(error);
    return state;
  }
  static ffi::ErrorOr<std::unique_ptr<LoopbackPlanSite>> InstantiateLoopbackPlan(ffi::Dictionary attrs) {
    auto state = std::make_unique<LoopbackPlanSite>();
    if (ffi::Error error = OpenLoopbackPlan(attrs, state.get()); error.failure()) return ffi::Unexpected(error);
    return state;
  }
  static ffi::ErrorOr<std::unique_ptr<ExchangeSite>> Instantiate(ffi::Dictionary attrs) { return Open(attrs, false); }
  static ffi::ErrorOr<std::unique_ptr<ExchangeSite>> InstantiatePlanning(ffi::Dictionary attrs) {
    return Open(attrs, true);
  }
  static ffi::ErrorOr<std::unique_ptr<PlanSite>> InstantiatePlan(ffi::Dictionary attrs) {
    auto state = std::make_unique<PlanSite>();
    if (ffi::Error error = OpenGpuPlan(attrs, state.get()); error.failure()) return ffi::Unexpected(error);
    return state;
  }

  static Outcome Execute(ExchangeSite* state, ffi::RunId run, Context context, ffi::AnyBuffer source,
                         ffi::AnyBuffer base, ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes,
                         ffi::AnyBuffer output_offsets, ffi::AnyBuffer recv_sizes, Table table,
                         ffi::AnyBuffer partition, ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
    return Platform::template Run<GpuExchangeCall>(
        state, run, std::move(context),
        ExchangeBuffers{source, base, input_offsets, send_sizes, output_offsets, recv_sizes, &table, partition,
                        *result});
  }
  static Outcome ExecutePlanning(ExchangeSite* state, ffi::RunId run, Context context, ffi::AnyBuffer source,
                                 ffi::AnyBuffer base, ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes,
                                 ffi::AnyBuffer output_offsets, ffi::AnyBuffer recv_sizes, ffi::AnyBuffer partition,
                                 ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
    return Platform::template Run<GpuExchangeCall>(
        state, run, std::move(context),
        ExchangeBuffers{source, base, input_offsets, send_sizes, output_offsets, recv_sizes, nullptr, partition,
                        *result});
  }
  static Outcome ExecuteLoopback(ExchangeSite* state, ffi::RunId run, Context context, ffi::AnyBuffer source,
                                 ffi::AnyBuffer base, ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes,
                                 ffi::AnyBuffer output_offsets, ffi::AnyBuffer recv_sizes,
                                 ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
    return Platform::template Run<LoopbackCall>(
        state, run, std::move(context),
        LoopbackBuffers{source, base, input_offsets, send_sizes, output_offsets, recv_sizes, *result});
  }
  static Outcome ExecuteLoopbackPlan(LoopbackPlanSite* state, ffi::RunId run, Context context,
                                     ffi::AnyBuffer send_sizes, ffi::Result<Table> table, ffi::Dictionary) {
    return Platform::template Run<LoopbackPlanCall>(state, run, std::move(context),
                                                    LoopbackPlanBuffers{send_sizes, *table});
  }
  static Outcome ExecutePlan(PlanSite* state, ffi::RunId run, Context context, ffi::AnyBuffer send_sizes,
                             ffi::AnyBuffer partition, ffi::Result<Table> table, ffi::Dictionary) {
    return Platform::template Run<GpuPlanCall>(state, run, std::move(context),
                                               PlanBuffers{send_sizes, partition, *table});
  }
};

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_GPU_BUNDLES_H_
