// Which transport moves a call site's rows.
#ifndef FASTJAX_HANDLERS_TRANSPORTS_H_
#define FASTJAX_HANDLERS_TRANSPORTS_H_

#include <memory>

#include "handlers/decode.h"
#include "transport/group.h"
#include "transport/transport.h"

namespace fastjax::handlers {

// That of this process alone, or that of the network where devices of other processes take part; an error where that
// has not been opened.
ffi::ErrorOr<std::shared_ptr<transport::Transport>> TransportOf(const transport::CallSite& site);

}  // namespace fastjax::handlers

#endif  // FASTJAX_HANDLERS_TRANSPORTS_H_
