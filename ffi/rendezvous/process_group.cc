#include "rendezvous/process_group.h"

#include <set>
#include <utility>

#include "planner/table.h"

namespace fastjax {
namespace {

constexpr size_t kModuleShown = 8;  // characters: enough to tell two modules apart

// For each device the message has its position and then its sizes; where rows are exchanged, six numbers and then four
// arrays of one length. The numbers are position, source rows, destination rows, row bytes, type, and hash of the plan.
constexpr int64_t kExchangeNumbers = 6;
constexpr int64_t kExchangeArrays = 4;

void Append(const IntView& view, std::vector<int64_t>* words) {
  const size_t at = words->size();
  words->resize(at + static_cast<size_t>(view.size));
  view.CopyTo(words->data() + at);
}

uint64_t PlanHash(const ExchangeArgs& args) {
  if (args.table == nullptr || args.table_words < planner::kHeaderWords) return 0;
  return planner::TableView(args.table).plan_hash();
}

}  // namespace

std::vector<int32_t> OtherProcesses(const CallSite& site, int32_t group, int32_t process) {
  std::set<int32_t> others;
  for (int32_t position = 0; position < site.group_size; ++position) {
    others.insert(site.process_of[site.partition(group, position)]);
  }
  others.erase(process);
  return {others.begin(), others.end()};
}

Site::Site(std::shared_ptr<ProcessGroup> process_group, std::shared_ptr<const CallSite> site, const std::string& what)
    : process_group_(std::move(process_group)), call_site_(std::move(site)) {
  const CallSite& call = *call_site_;
  text_ = call.operation + " over axis " + call.axis + " (channel " + std::to_string(call.channel) + " of " +
          call.program + ") between " + std::to_string(call.group_size) + " devices, " + what + ", of " + call.shapes;
  if (!call.module.empty()) text_ += kInModule + call.module.substr(0, kModuleShown);
  const std::string named = text_ + call.module;
  call_ = process_group_->transport->KeyedHash(named.data(), named.size());
  number_ = process_group_->launch_ids.Open(call_, call.module);
  local_.resize(call.groups());
  local_ranks_.resize(call.groups());
  for (int32_t group = 0; group < call.groups(); ++group) {
    others_.push_back(OtherProcesses(call, group, process()));
    for (int32_t position = 0; position < call.group_size; ++position) {
      if (process_of(group, position) != process()) continue;
      local_[group].push_back(position);
      local_ranks_[group].push_back(call.rank_of[position]);
    }
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

// Calls read(position, words) for each device of each message. A process describes all its devices and no others.
template <typename ReadDevice>
Status Site::ForEachDevice(const ProcessSession& session, int64_t words_each, ReadDevice read) const {
  const int32_t group = session.key.group;
  for (size_t place = 0; place < session.others.size(); ++place) {
    const ProcessMetadata& message = session.messages[place]->metadata;
    const int32_t process = session.others[place];
    int64_t at = 0;
    bool fits = true;
    for (int32_t position = 0; position < call_site_->group_size && fits; ++position) {
      if (process_of(group, position) != process) continue;
      fits = message.num_words - at >= words_each && message.words[at] == position;
      if (fits) read(position, message.words + at);
      at += words_each;
    }
    if (!fits || at != message.num_words) {
      return Status::Internal(session.prefix + process_group_->transport->Describe(process) +
                              " describes other devices than it has, or other numbers of slices.");
    }
  }
  return Status::Ok();
}

void Site::Write(const std::vector<ExchangeArgs>& args, ProcessSession* session) const {
  std::vector<int64_t>* const words = &session->words;
  words->clear();
  for (const int32_t position : local(session->key.group)) {
    const ExchangeArgs& device = args[position];
    words->insert(words->end(), {position, device.source_rows, device.destination_rows, device.row_bytes,
                                 static_cast<int64_t>(device.element), static_cast<int64_t>(PlanHash(device))});
    for (const auto* view : {&device.input_offsets, &device.send_sizes, &device.output_offsets, &device.recv_sizes}) {
      Append(*view, words);
    }
  }
  session->Encode();
}

void Site::Write(const std::vector<CountsArgs>& args, ProcessSession* session) const {
  session->words.clear();
  for (const int32_t position : local(session->key.group)) {
    session->words.push_back(position);
    Append(args[position].send_sizes, &session->words);
  }
  session->Encode();
}

Status Site::Read(const ProcessSession& session, std::vector<ExchangeArgs>* args) const {
  // The other processes' devices get a copy of the shapes: one program has the same shapes on all devices.
  const ExchangeArgs own = (*args)[local(session.key.group).front()];
  const int64_t updates = own.send_sizes.size;
  bool same = true;
  Status status =
      ForEachDevice(session, kExchangeNumbers + kExchangeArrays * updates, [&](int32_t position, const int64_t* words) {
        ExchangeArgs& device = (*args)[position];
        device = {};
        device.source_rows = own.source_rows;
        device.destination_rows = own.destination_rows;
        device.row_bytes = own.row_bytes;
        device.element = own.element;
        same = same && words[1] == own.source_rows && words[2] == own.destination_rows && words[3] == own.row_bytes &&
               words[4] == static_cast<int64_t>(own.element);
        device.plan_hash = static_cast<uint64_t>(words[5]);
        const int64_t* array = words + kExchangeNumbers;
        for (auto* view : {&device.input_offsets, &device.send_sizes, &device.output_offsets, &device.recv_sizes}) {
          *view = {array, updates, IntKind::kS64};
          array += updates;
        }
      });
  if (status.ok() && !same) {
    return Status::Invalid(session.prefix +
                           "operands have other shapes or another type in another process. "
                           "Every process must run the same program, with the same arguments.");
  }
  return status;
}

Status Site::Read(const ProcessSession& session, std::vector<CountsArgs>* args) const {
  const int64_t updates = (*args)[local(session.key.group).front()].send_sizes.size;
  return ForEachDevice(session, 1 + updates, [&](int32_t position, const int64_t* words) {
    (*args)[position] = {{words + 1, updates, IntKind::kS64}, nullptr};
  });
}

std::string Describe(const ExchangeOptions& options) {
  return std::string(options.reverse ? "backwards" : "forwards") + (options.plan ? "" : " by a plan made before") +
         (options.transposed_table ? ", transposed" : "") + (options.indexed ? ", of rows that indices name" : "") +
         (options.check_overlaps ? ", looking for output slices that overlap" : "") +
         (options.drop ? ", dropping rows out of range" : "");
}

}  // namespace fastjax
