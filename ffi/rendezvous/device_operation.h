// Declares DeviceOperation: an operation of all devices of one process together, counts or exchange.
#ifndef FASTJAX_RENDEZVOUS_DEVICE_OPERATION_H_
#define FASTJAX_RENDEZVOUS_DEVICE_OPERATION_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "exchange/call_site.h"
#include "exchange/status.h"
#include "rendezvous/rendezvous.h"

namespace fastjax {

// Base is Counts or Exchange. State is shared with launches, which may outlive the operation. It has `site`, `meter`,
// and
//   void Execute(const std::shared_ptr<State>& self, typename Rendezvous<Args>::Session* session, int32_t last)
// which is called for the last device of a group to arrive, and finishes the session.
template <typename Base, typename Args, typename State>
class DeviceOperation final : public Base {
 public:
  explicit DeviceOperation(std::shared_ptr<State> state)
      : state_(std::move(state)),
        rendezvous_(Rendezvous<Args>::Create(
            state_->site, [shared = state_](auto* session, int32_t last) { shared->Execute(shared, session, last); },
            kAllProcesses, [shared = state_](const auto&, const Status&) { shared->meter.Fail(); })) {}

  void Start(int64_t run_id, int32_t partition, Args args, Completion done) override {
    const CallSite& site = *state_->site;
    rendezvous_->Arrive(run_id, site.group_of[partition], site.position_of[partition], args, std::move(done));
  }

  void Refuse(int64_t run_id, int32_t partition, const Status& why, Completion done) override {
    const CallSite& site = *state_->site;
    rendezvous_->Refuse(run_id, site.group_of[partition], site.position_of[partition], why, std::move(done));
  }

 private:
  const std::shared_ptr<State> state_;
  const std::shared_ptr<Rendezvous<Args>> rendezvous_;
};

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_DEVICE_OPERATION_H_
