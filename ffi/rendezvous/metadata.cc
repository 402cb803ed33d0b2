#include "rendezvous/metadata.h"

#include <algorithm>
#include <string>

#include "planner/table.h"

namespace fastjax {
namespace {

// For each device the message has six numbers and then the device's arrays, all of one length. The numbers are
// position, source rows, destination rows, row bytes, type, and hash of the plan.
constexpr int64_t kExchangeNumbers = 6;
constexpr int64_t kExchangeArrays = 4;
constexpr int64_t kCountsNumbers = 1;
constexpr int64_t kCountsArrays = 1;

void Append(const IntView& view, std::vector<int64_t>* words) {
  const size_t at = words->size();
  words->resize(at + static_cast<size_t>(view.size));
  view.CopyTo(words->data() + at);
}

uint64_t PlanHash(const ExchangeArgs& args) {
  if (args.table == nullptr || args.table_words < planner::kHeaderWords) return 0;
  return planner::TableView(args.table).plan_hash();
}

// Calls read(position, words) for each device of each message. A process describes all its devices and no others.
template <typename Read>
Status ForEachDevice(const Site& site, int32_t group, const ProcessSession& session, int64_t words_each, Read read) {
  for (size_t place = 0; place < session.others.size(); ++place) {
    const ProcessMetadata& message = session.messages[place]->metadata;
    const int32_t process = session.others[place];
    int64_t at = 0;
    bool fits = true;
    for (int32_t position = 0; position < site.call_site().group_size && fits; ++position) {
      if (site.process_of(group, position) != process) continue;
      fits = message.num_words - at >= words_each && message.words[at] == position;
      if (fits) read(position, message.words + at);
      at += words_each;
    }
    if (!fits || at != message.num_words) {
      return Status::Internal(session.prefix + site.process_group().transport->Describe(process) +
                              " describes other devices than it has, or other numbers of slices.");
    }
  }
  return Status::Ok();
}

}  // namespace

void WriteMetadata(const Site& site, int32_t group, const std::vector<ExchangeArgs>& args,
                   std::vector<int64_t>* words) {
  words->clear();
  for (const int32_t position : site.local(group)) {
    const ExchangeArgs& device = args[position];
    words->insert(words->end(), {position, device.source_rows, device.destination_rows, device.row_bytes,
                                 static_cast<int64_t>(device.element), static_cast<int64_t>(PlanHash(device))});
    for (const auto* view : {&device.input_offsets, &device.send_sizes, &device.output_offsets, &device.recv_sizes}) {
      Append(*view, words);
    }
  }
}

void WriteMetadata(const Site& site, int32_t group, const std::vector<CountsArgs>& args, std::vector<int64_t>* words) {
  words->clear();
  for (const int32_t position : site.local(group)) {
    words->push_back(position);
    Append(args[position].send_sizes, words);
  }
}

Status ReadMetadata(const Site& site, int32_t group, const ProcessSession& session, std::vector<ExchangeArgs>* args) {
  // The other processes' devices get a copy of the shapes: one program has the same shapes on all devices.
  const ExchangeArgs own = (*args)[site.local(group).front()];
  const int64_t updates = own.send_sizes.size;
  bool same = true;
  Status status = ForEachDevice(
      site, group, session, kExchangeNumbers + kExchangeArrays * updates, [&](int32_t position, const int64_t* words) {
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

Status ReadMetadata(const Site& site, int32_t group, const ProcessSession& session, std::vector<CountsArgs>* args) {
  const int64_t updates = (*args)[site.local(group).front()].send_sizes.size;
  return ForEachDevice(site, group, session, kCountsNumbers + kCountsArrays * updates,
                       [&](int32_t position, const int64_t* words) {
                         (*args)[position] = {{words + kCountsNumbers, updates, IntKind::kS64}, nullptr};
                       });
}

}  // namespace fastjax
