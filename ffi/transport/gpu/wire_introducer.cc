#include "transport/gpu/wire_introducer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <vector>

#include "transport/network/meetings.h"

namespace fastjax::transport::gpu {
namespace {

using network::Meeting;
using network::Message;

// A letter says whether it is from the process that made the id, and then the id.
constexpr size_t kIdWords = sizeof(nccl::UniqueId) / sizeof(int64_t);
constexpr int64_t kWords = 1 + int64_t{kIdWords};

// One process's part in it. The caller waits for its end, so all of it lives on the caller's stack.
class Introduction final : public network::Guest {
 public:
  Introduction(network::Station* station, nccl::UniqueId* id, bool makes) : station_(station), id_(id), makes_(makes) {
    meeting_.guest = this;
  }

  Meeting& meeting() { return meeting_; }

  Status Run() {
    std::future<Status> ended = told_->get_future();
    if (!station_->wire->Post([this] { Join(); })) {
      return Status::Unavailable("the network of this process has been closed.");
    }
    return ended.get();  // not bounded here: the meeting is
  }

  void OnMet() override { End(TakeId()); }
  void OnFailed(const Status& why) override { End(why); }
  void OnTick(std::chrono::steady_clock::time_point /*now*/) override {}

 private:
  void Join() {
    // Those that were given up stay so, for all who took part: each attempt has a number of its own.
    while (station_->meetings.IsGivenUp(meeting_.key, meeting_.visit)) ++meeting_.visit.round;
    std::vector<int64_t> words(static_cast<size_t>(kWords), 0);
    words[0] = makes_ ? 1 : 0;
    if (makes_) std::memcpy(&words[1], id_->bytes, sizeof(id_->bytes));
    Message message;
    message.key = meeting_.key;
    message.visit = meeting_.visit;
    message.text = meeting_.text;
    message.words = words.data();
    message.num_words = kWords;
    network::Encode(message, &meeting_.bytes);
    station_->meetings.Join(&meeting_);
  }

  Status TakeId() {
    if (makes_) return Status::Ok();
    for (const auto& letter : meeting_.letters) {
      const Message& theirs = letter->message;
      if (theirs.num_words != kWords || theirs.words[0] != 1) continue;
      std::memcpy(id_->bytes, theirs.words + 1, sizeof(id_->bytes));
      return Status::Ok();
    }
    return Status::Internal("no process has made a communicator; do all run the same version?");
  }

  void End(const Status& status) {
    station_->meetings.Leave(&meeting_);
    const auto told = told_;  // this may be gone as soon as the caller is told
    told->set_value(status);
  }

  network::Station* const station_;
  nccl::UniqueId* const id_;
  const bool makes_;
  Meeting meeting_;
  const std::shared_ptr<std::promise<Status>> told_ = std::make_shared<std::promise<Status>>();
};

}  // namespace

// Devices by their process and their number in it.
std::string WireIntroducer::NameOf(const CallSite& site, int32_t group) {
  std::string name = "GPUs";
  for (const int32_t position : site.position_at) {
    const auto partition = static_cast<size_t>(site.partition(group, position));
    name += " " + std::to_string(site.process_of[partition]) + "." + std::to_string(site.rail_of[partition]);
  }
  return name;
}

Status WireIntroducer::Share(const CallSite& site, int32_t group, const std::string& name, int64_t generation,
                             bool makes, nccl::UniqueId* id) {
  Introduction introduction(station_.get(), id, makes);
  Meeting& meeting = introduction.meeting();
  meeting.text = "the communicators of " + name;
  meeting.key = {station_->wire->KeyedHash(meeting.text.data(), meeting.text.size()), 0};
  meeting.visit.run_id = generation;
  meeting.timeout = std::chrono::milliseconds(site.timeout_ms);
  for (int32_t position = 0; position < site.group_size; ++position) {
    const int32_t owner = site.process_of[static_cast<size_t>(site.partition(group, position))];
    if (owner != station_->wire->process()) meeting.others.push_back(owner);
  }
  std::sort(meeting.others.begin(), meeting.others.end());
  meeting.others.erase(std::unique(meeting.others.begin(), meeting.others.end()), meeting.others.end());
  return introduction.Run();
}

}  // namespace fastjax::transport::gpu
