#include "rendezvous/site.h"

#include <algorithm>
#include <utility>

namespace fastjax {

Site::Site(std::shared_ptr<Station> station, std::shared_ptr<const CallSite> site, const std::string& what)
    : station_(std::move(station)), call_site_(std::move(site)) {
  const CallSite& call = *call_site_;
  text_ = call.operation + " over axis " + call.axis + " (channel " + std::to_string(call.channel) + " of " +
          call.program + ") between " + std::to_string(call.group_size) + " devices, " + what + ", of " + call.shapes;
  call_ = station_->wire->KeyedHash(text_.data(), text_.size());
  number_ = station_->visits.Open(call_);
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

Site::~Site() { station_->visits.Close(call_, number_); }

void Site::Begin(int64_t run_id, int32_t group, Meeting* meeting) const {
  meeting->key = {call_, group};
  meeting->visit = station_->visits.Count(call_, number_, group, run_id);
  meeting->settings = call_site_->settings;
  meeting->text = text_;
  meeting->others = others_[group];
  meeting->timeout = std::chrono::milliseconds(call_site_->timeout_ms);
  meeting->prefix = call_site_->Prefix();
}

void Site::Write(const std::vector<int64_t>& words, Meeting* meeting) const {
  Message message;
  message.key = meeting->key;
  message.visit = meeting->visit;
  message.settings = meeting->settings;
  message.text = meeting->text;
  message.words = words.data();
  message.num_words = static_cast<int64_t>(words.size());
  Encode(message, &meeting->bytes);
}

std::string Describe(const ExchangeOptions& options) {
  return std::string(options.reverse ? "backwards" : "forwards") + (options.plan ? "" : " by a plan made before") +
         (options.transposed_table ? ", transposed" : "") +
         (options.check_overlaps ? ", looking for output slices that overlap" : "");
}

}  // namespace fastjax
