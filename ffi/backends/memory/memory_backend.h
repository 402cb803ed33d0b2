// Declares the backend for devices of one process. They share its memory, so its copy threads copy the rows.
#ifndef FASTJAX_BACKENDS_MEMORY_MEMORY_BACKEND_H_
#define FASTJAX_BACKENDS_MEMORY_MEMORY_BACKEND_H_

#include <memory>

#include "exchange/call_site.h"
#include "exchange/operation.h"

namespace fastjax::memory {

std::shared_ptr<Exchange> OpenExchange(const std::shared_ptr<const CallSite>& site, ExchangeOptions options);

}  // namespace fastjax::memory

#endif  // FASTJAX_BACKENDS_MEMORY_MEMORY_BACKEND_H_
