#include "backends/gpu/ipc/encounter.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fastjax::gpu::ipc {
namespace {

constexpr size_t kNameWords = 3;  // of a board

int32_t ProcessOf(const Party& party, int32_t rank) {
  const CallSite& site = party.site;
  return site.process_of[static_cast<size_t>(site.partition(party.group, site.position_at[rank]))];
}

}  // namespace

Neighbours::Encounter::Encounter(Neighbours* neighbours, const Party& party, Group* group, bool sums,
                                 std::vector<ExchangeArgs>* args, Placement* placement, Layout* layout)
    : neighbours_(*neighbours),
      party_(party),
      group_(*group),
      sums_(sums),
      args_(args),
      placement_(placement),
      layout_(layout) {
  std::vector<int32_t> processes = party.others;
  processes.insert(std::upper_bound(processes.begin(), processes.end(), party.process), party.process);
  for (const int32_t process : processes) {
    if (process == party.process) own_ = peers_.size();
    Peer peer{process, {}, {}};
    for (int32_t rank = 0; rank < party.site.group_size; ++rank) {
      if (ProcessOf(party, rank) == process) peer.ranks.push_back(rank);
    }
    peers_.push_back(std::move(peer));
  }
}

Status Neighbours::Encounter::Run() {
  Describe();
  if (Status status = SwapLetters(); !status.ok()) return status;
  if (!refusal_.empty()) return Status::Ok();
  const bool news = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.letter.news; });
  Status status;
  if (!Agree()) {
    status = Form();
  } else if (news) {
    status = Confirm(OpenLoans());
  }
  if (!status.ok() || !refusal_.empty()) return status;
  return Begin();
}

// What all have agreed to. The others launch it, unless they are told otherwise.
Status Neighbours::Encounter::Begin() {
  ++group_.exchanges;
  if (group_.circle == nullptr) return Status::Ok();
  group_.circle->Begin(&layout_->step);
  Status status = Guarded([&] {
    for (const Loan& loan : own().letter.loans) group_.opened.insert(loan.id);
    return PlaceAll();
  });
  if (status.ok()) {
    layout_->circle = group_.circle;
  } else {
    group_.circle->GiveUp();
  }
  return status;
}

// From now on, for all processes of the group alike.
void Neighbours::Encounter::Refuse(const std::string& why) {
  refusal_ = why;
  group_.Leave();
  neighbours_.Refuse(party_.group, why);
}

void Neighbours::Encounter::Describe() {
  Letter& letter = own().letter;
  letter.host = neighbours_.memory_->host();
  letter.circle = group_.circle_id;
  letter.exchanges = group_.exchanges;
  const std::vector<int32_t>& ranks = own().ranks;
  letter.devices.resize(ranks.size());
  const auto domain = [&](int32_t rank) { return layout_->domain_of[static_cast<size_t>(rank)]; };
  Status status;
  const bool one = layout_->lanes.size() == ranks.size() && std::all_of(ranks.begin(), ranks.end(), [&](int32_t rank) {
                     return domain(rank) == domain(ranks.front());
                   });
  if (!one) status = Status::Unavailable("devices of one process do not reach each other's memory");
  for (size_t i = 0; status.ok() && i < ranks.size(); ++i) {
    const ExchangeArgs& args = ArgsOf(ranks[i]);
    Letter::Device& device = letter.devices[i];
    device.staging_rows = std::max<int64_t>(placement_->staging_rows(ranks[i]), 0);
    if (sums_) {
      status = Lend(i, args.source, args.source_rows * args.row_bytes, &device.places[kSource]);
      continue;
    }
    status = Lend(i, args.destination, args.destination_rows * args.row_bytes, &device.places[kDestination]);
    if (!status.ok()) break;
    status = Lend(i, placement_->staging(ranks[i]), device.staging_rows * args.row_bytes, &device.places[kStaging]);
  }
  letter.refuses = !status.ok();
  refusal_ = status.message;
  letter.news = group_.circle_id == 0 || std::any_of(letter.loans.begin(), letter.loans.end(), [&](const Loan& loan) {
                  return group_.opened.count(loan.id) == 0;
                });
}

Status Neighbours::Encounter::Lend(size_t lane, const void* address, int64_t bytes, Letter::Place* place) {
  if (bytes == 0 || address == nullptr) return Status::Ok();
  Loan loan;
  Status status = neighbours_.memory_->Lend(layout_->lanes[lane]->device, address, &loan);
  if (!status.ok()) return status;
  std::vector<Loan>& loans = own().letter.loans;
  const auto same = [&](const Loan& other) { return other.id == loan.id && other.base == loan.base; };
  const auto found = std::find_if(loans.begin(), loans.end(), same);
  place->loan = found - loans.begin();
  place->offset = reinterpret_cast<uintptr_t>(address) - loan.base;
  if (found == loans.end()) loans.push_back(loan);
  return Status::Ok();
}

Status Neighbours::Encounter::Swap(const char* about, std::vector<int64_t> words,
                                   std::vector<std::vector<int64_t>>* answers) {
  Status status = party_.swap(about, std::move(words), answers);
  if (!status.ok()) return status;
  answers->insert(answers->begin() + static_cast<std::ptrdiff_t>(own_), std::vector<int64_t>{});
  return Status::Ok();
}

Status Neighbours::Encounter::SwapLetters() {
  std::vector<std::vector<int64_t>> answers;
  if (Status status = Swap("where memory lies", Encode(own().letter), &answers); !status.ok()) return status;
  std::string refusal = refusal_;
  bool alone = true;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (i != own_ && !Decode(answers[i], peer.ranks.size(), &peer.letter)) {
      return Status::Internal(party_.site.Prefix() + "process " + std::to_string(peer.process) +
                              " describes memory in another way; do all run the same version?");
    }
    if (peer.letter.refuses && refusal.empty()) {
      refusal = "process " + std::to_string(peer.process) + " cannot share its memory";
    }
    for (size_t j = 0; j < i; ++j) alone = alone && peers_[j].letter.host != peer.letter.host;
  }
  if (refusal.empty() && alone) refusal = "no two processes of the group are on one host";
  if (!refusal.empty()) Refuse(refusal);
  return Status::Ok();
}

// Whether all are in what was agreed on before.
bool Neighbours::Encounter::Agree() const {
  const Letter& here = own().letter;
  return here.circle != 0 && std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
           return peer.letter.circle == here.circle && peer.letter.exchanges == here.exchanges;
         });
}

int32_t Neighbours::Encounter::DevicesNear() const {
  size_t count = 0;
  for (const Peer& peer : peers_) count += IsNear(peer) ? peer.ranks.size() : 0;
  return static_cast<int32_t>(count);
}

// All begin anew. Everybody makes a board, since nobody knows yet whose is taken.
Status Neighbours::Encounter::Form() {
  group_.Leave();
  const bool near = static_cast<size_t>(DevicesNear()) > own().ranks.size();
  std::unique_ptr<Board> board;
  Status status = near ? Board::Make(neighbours_.gpu_, DevicesNear(), &board) : Status::Ok();
  const BoardName name = board == nullptr ? BoardName{} : board->name();
  std::vector<int64_t> words = {static_cast<int64_t>(name.process), static_cast<int64_t>(name.random[0]),
                                static_cast<int64_t>(name.random[1])};
  std::vector<std::vector<int64_t>> answers;
  if (Status swapped = Swap("boards", words, &answers); !swapped.ok()) return swapped;
  answers[own_] = std::move(words);
  std::vector<BoardName> names(peers_.size());
  uint64_t id = 1;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (answers[i].size() != kNameWords) return Status::Internal(party_.site.Prefix() + "a board has another name.");
    const auto word = [&](size_t at) { return static_cast<uint64_t>(answers[i][at]); };
    names[i] = {word(0), {word(1), word(2)}};
    id += word(1);
  }
  if (status.ok() && near) status = MakeCircle(std::move(board), names);
  if (status.ok()) status = OpenLoans();
  status = Confirm(status);
  if (!status.ok() || !refusal_.empty()) return status;
  group_.circle_id = id | 1;
  if (group_.circle != nullptr) group_.circle->Unlink();
  return status;
}

// By the board of the first of those on this host.
Status Neighbours::Encounter::MakeCircle(std::unique_ptr<Board> own_board, const std::vector<BoardName>& names) {
  std::vector<CircleDevice> devices;
  size_t first = peers_.size();
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!IsNear(peers_[i])) continue;
    first = std::min(first, i);
    for (const int32_t rank : peers_[i].ranks) {
      const int32_t lane = layout_->lane_of[static_cast<size_t>(rank)];
      devices.push_back({rank, lane < 0 ? -1 : layout_->lanes[static_cast<size_t>(lane)]->device});
    }
  }
  if (first != own_) {
    // The own one goes now; nobody has looked for it.
    Status status = Board::Open(neighbours_.gpu_, names[first], DevicesNear(), &own_board);
    if (!status.ok()) return status;
  }
  return Circle::Make(neighbours_.gpu_, group_.report, std::move(own_board), devices, &group_.circle);
}

Status Neighbours::Encounter::OpenLoans() {
  for (const Peer& peer : peers_) {
    if (&peer == &own() || !IsNear(peer)) continue;
    for (const Loan& loan : peer.letter.loans) {
      for (const Caller* caller : layout_->lanes) {
        std::byte* base = nullptr;
        Status status = neighbours_.memory_->Borrow(caller->device, peer.process, loan, &base);
        if (!status.ok()) return status;
      }
    }
  }
  return Status::Ok();
}

// Whether everybody could do it.
Status Neighbours::Encounter::Confirm(const Status& here) {
  std::vector<std::vector<int64_t>> answers;
  if (Status status = Swap("whether memory is shared", {here.ok() ? 1 : 0}, &answers); !status.ok()) {
    if (group_.circle != nullptr) group_.circle->GiveUp();  // others may have heard of all
    return status;
  }
  std::string refusal = here.message;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (i == own_ || !refusal.empty() || (answers[i].size() == 1 && answers[i][0] == 1)) continue;
    refusal = "process " + std::to_string(peers_[i].process) + " cannot open memory that others share";
  }
  if (!refusal.empty()) Refuse(refusal);
  return Status::Ok();
}

Status Neighbours::Encounter::PlaceAll() {
  const size_t lanes = layout_->lanes.size();
  const auto ranks = static_cast<size_t>(party_.site.group_size);
  if (lanes > 1) layout_->shifts.assign(lanes * ranks * kParts, 0);
  for (const Peer& peer : peers_) {
    if (&peer == &own() || !IsNear(peer)) continue;
    for (size_t i = 0; i < peer.ranks.size(); ++i) {
      for (size_t lane = 0; lane < lanes; ++lane) {
        if (Status status = PlaceDevice(lane, peer, i); !status.ok()) return status;
      }
    }
  }
  return Status::Ok();
}

Status Neighbours::Encounter::PlaceDevice(size_t lane, const Peer& peer, size_t index) {
  const int32_t rank = peer.ranks[index];
  const Letter::Device& device = peer.letter.devices[index];
  std::byte* at[kParts] = {};
  for (const Part part : {kSource, kDestination, kStaging}) {
    if (Status status = FindPart(lane, peer, device, part, &at[part]); !status.ok()) return status;
  }
  ExchangeArgs& args = ArgsOf(rank);
  if (lane == 0) {
    args.source = at[kSource];
    args.destination = at[kDestination];
    placement_->SetStaging(rank, device.staging_rows, at[kStaging]);
    layout_->domain_of[static_cast<size_t>(rank)] = layout_->domain_of[static_cast<size_t>(own().ranks.front())];
    return Status::Ok();
  }
  const std::byte* const first[kParts] = {args.source, args.destination, placement_->staging(rank)};
  const size_t shifts = (lane * static_cast<size_t>(party_.site.group_size) + static_cast<size_t>(rank)) * kParts;
  for (size_t part = 0; part < kParts; ++part) {
    layout_->shifts[shifts + part] = reinterpret_cast<intptr_t>(at[part]) - reinterpret_cast<intptr_t>(first[part]);
  }
  return Status::Ok();
}

Status Neighbours::Encounter::FindPart(size_t lane, const Peer& peer, const Letter::Device& device, Part part,
                                       std::byte** at) const {
  const Letter::Place& place = device.places[part];
  const ExchangeArgs& any = ArgsOf(own().ranks.front());
  const int64_t rows[kParts] = {any.source_rows, any.destination_rows, device.staging_rows};
  const auto bytes = static_cast<uint64_t>(rows[part]) * static_cast<uint64_t>(any.row_bytes);
  if (bytes == 0 || sums_ != (part == kSource)) return Status::Ok();
  const Loan loan = place.loan < 0 ? Loan{} : peer.letter.loans[static_cast<size_t>(place.loan)];
  if (place.offset > loan.bytes || bytes > loan.bytes - place.offset) {
    return Status::Internal(party_.site.Prefix() + "process " + std::to_string(peer.process) +
                            " shares less memory than it needs; do all run the same version?");
  }
  std::byte* base = nullptr;
  const int32_t here = layout_->lanes[lane]->device;
  if (Status status = neighbours_.memory_->Borrow(here, peer.process, loan, &base); !status.ok()) return status;
  *at = base + place.offset;
  return Status::Ok();
}

}  // namespace fastjax::gpu::ipc
