// Declares the backend for devices of one process. They share its memory, so its copy threads copy the rows.
#ifndef FASTJAX_BACKENDS_MEMORY_MEMORY_BACKEND_H_
#define FASTJAX_BACKENDS_MEMORY_MEMORY_BACKEND_H_

#include <memory>
#include <utility>

#include "exchange/backend.h"
#include "rendezvous/counts.h"

namespace fastjax::memory {

class MemoryBackend final : public Backend {
 public:
  // Neither has state: any number of them is one.
  std::shared_ptr<Counts> OpenCounts(std::shared_ptr<const CallSite> site, PlanFunction plan) override {
    return OpenDeviceCounts(site, std::move(plan));
  }
  std::shared_ptr<Exchange> OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) override;
};

}  // namespace fastjax::memory

#endif  // FASTJAX_BACKENDS_MEMORY_MEMORY_BACKEND_H_
