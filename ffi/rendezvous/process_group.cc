#include "rendezvous/process_group.h"

#include <algorithm>
#include <utility>

namespace fastjax {
namespace {

constexpr size_t kModuleShown = 8;  // characters: enough to tell two modules apart

}  // namespace

Site::Site(std::shared_ptr<ProcessGroup> process_group, std::shared_ptr<const CallSite> site, const std::string& what)
    : process_group_(std::move(process_group)), call_site_(std::move(site)) {
  const CallSite& call = *call_site_;
  text_ = call.operation + " over axis " + call.axis + " (channel " + std::to_string(call.channel) + " of " +
          call.program + ") between " + std::to_string(call.group_size) + " devices, " + what + ", of " + call.shapes;
  if (!call.module.empty()) text_ += kInModule + call.module.substr(0, kModuleShown);
  const std::string named = text_ + call.module;
  call_ = process_group_->transport->KeyedHash(named.data(), named.size());
  number_ = process_group_->launch_ids.Open(call_, call.module);
  others_.resize(call.groups());
  local_.resize(call.groups());
  for (int32_t group = 0; group < call.groups(); ++group) {
    std::vector<int32_t>& others = others_[group];
    for (int32_t position = 0; position < call.group_size; ++position) {
      const int32_t owner = process_of(group, position);
      if (owner == process()) {
        local_[group].push_back(position);
      } else {
        others.push_back(owner);
      }
    }
    std::sort(others.begin(), others.end());
    others.erase(std::unique(others.begin(), others.end()), others.end());
  }
}

Site::~Site() { process_group_->launch_ids.Close(number_); }

void Site::Begin(int64_t run_id, int32_t group, ProcessSession* session) const {
  session->key = {call_, group};
  session->launch_id = process_group_->launch_ids.Count(number_, group, run_id);
  session->settings = call_site_->settings;
  session->text = text_;
  session->others = others_[group];
  session->timeout = std::chrono::milliseconds(call_site_->timeout_ms);
  session->prefix = call_site_->Prefix();
}

void Site::Write(const std::vector<int64_t>& words, ProcessSession* session) const {
  ProcessMetadata message;
  message.key = session->key;
  message.launch_id = session->launch_id;
  message.settings = session->settings;
  message.text = session->text;
  message.words = words.data();
  message.num_words = static_cast<int64_t>(words.size());
  Encode(message, &session->bytes);
}

std::string Describe(const ExchangeOptions& options) {
  return std::string(options.reverse ? "backwards" : "forwards") + (options.plan ? "" : " by a plan made before") +
         (options.transposed_table ? ", transposed" : "") + (options.indexed ? ", of rows that indices name" : "") +
         (options.check_overlaps ? ", looking for output slices that overlap" : "") +
         (options.drop ? ", dropping rows out of range" : "");
}

}  // namespace fastjax
