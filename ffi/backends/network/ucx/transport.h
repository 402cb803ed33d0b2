// Declares the transport over UCX: TCP or RDMA between hosts.
#ifndef FASTJAX_BACKENDS_NETWORK_UCX_TRANSPORT_H_
#define FASTJAX_BACKENDS_NETWORK_UCX_TRANSPORT_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/network/ucx/connections.h"
#include "backends/network/ucx/control_messages.h"
#include "backends/network/ucx/loop.h"
#include "backends/network/ucx/peer.h"
#include "backends/network/ucx/row_transfers.h"
#include "runtime/job_network.h"

namespace fastjax::network::ucx {

class UcxTransport final : public JobTransport, private Loop, public std::enable_shared_from_this<UcxTransport> {
 public:
  // Opens a transport. Returns null, with the reason, if UCX cannot.
  static std::shared_ptr<UcxTransport> Open(const TransportOptions& options, std::string* wrong);

  const std::string& addresses() const override { return addresses_; }
  std::string AddPeer(int32_t process, const std::string& addresses) override;
  void PeerLost(int32_t process, const std::string& why) override;
  bool Close(std::chrono::milliseconds limit) override;
  void Halt() override;
  TransportState State() override;

  int32_t process() const override { return parts_.process; }
  int32_t processes() const override { return static_cast<int32_t>(parts_.peers.size()); }
  void SetHandler(Handler* handler) override { handler_.store(handler); }
  bool Post(std::function<void()> task) override;
  uint64_t KeyedHash(const void* data, size_t bytes) const override {
    return fastjax::KeyedHash(parts_.secret, data, bytes);
  }
  std::string Describe(int32_t process) const override;
  bool HasJoined(int32_t process) const override;
  std::string Trouble(int32_t process) const override;

  void SendMessage(int32_t process, const void* data, size_t bytes) override;
  void Send(const RowMessage& message) override;
  void Receive(const RowMessage& message) override;
  void Cancel(Listener* listener) override { row_transfers_.Cancel(listener); }
  void Disconnect(int32_t process) override;
  void Probe(int32_t process) override;
  bool Silent(int32_t process) const override;
  void Drop(uint64_t tag, uint64_t mask) override { row_transfers_.Drop(tag, mask); }

 private:
  // Receives the active messages of a NIC worker.
  struct MessageTarget {
    UcxTransport* transport;
    NicWorker* nic_worker;
  };
  enum class Phase { kOpen, kClosing, kFlushing, kLeaving, kClosed };

  UcxTransport();
  std::string Start(const TransportOptions& options);

  bool Poll() override;
  bool Expecting() const override;
  bool Arm() override;
  void Tick(Clock::time_point now) override;
  bool Ended() override;
  void BeginClosing(std::chrono::milliseconds limit);

  static ucs_status_t OnActiveMessage(void* argument, const void* header, size_t header_length, void* data,
                                      size_t length, const ucp_am_recv_param_t* param);
  bool Genuine(const Header& header, size_t length) const;
  uint64_t RingProof(int32_t writer, const Peer& peer) const;
  bool IsProcess(int32_t process) const { return process >= 0 && process < processes(); }
  // Null: there is no such process.
  Peer* PeerOf(int32_t process) { return IsProcess(process) ? &parts_.peers[static_cast<size_t>(process)] : nullptr; }
  void Contact(int32_t process);
  void TakeFromRings();
  bool TakeArrivals();
  void Disarm();
  void Dispatch(const Arrival& arrival);
  void InOrder(Peer* peer, const Arrival& arrival);
  void Deliver(Peer* peer, const Arrival& arrival);

  void Join(Peer* peer, Addresses addresses);
  // Ends everything with the process, and goes on in that generation.
  void End(Peer* peer, const Status& why, uint32_t generation);
  void Lose(Peer* peer, const Status& why, uint32_t generation);  // and tells the handler
  void OnFailure(const Connections::Failure& failure);
  void SetDescription(int32_t process, const std::string& name, const std::string& trouble);
  void LeaveAll();
  bool Foreign() const;  // whether this is a forked child, which has no thread of the transport's
  TransportState StateNow();

  TransportParts parts_;
  Connections connections_;
  RowTransfers row_transfers_;
  ControlMessages control_messages_;
  std::string addresses_;
  std::vector<MessageTarget> message_targets_;
  std::vector<Arrival> arrivals_, from_rings_;
  std::atomic<Handler*> handler_{nullptr};
  Phase phase_ = Phase::kOpen;
  bool armed_ = false;
  Clock::time_point deadline_;
  int forks_ = 0;
  std::shared_ptr<UcxTransport> behind_;  // itself, if it stays behind

  mutable std::mutex mutex_;
  struct Known {
    std::string name, trouble;
  };
  std::vector<Known> known_;  // of each process, for Describe
};

}  // namespace fastjax::network::ucx

#endif  // FASTJAX_BACKENDS_NETWORK_UCX_TRANSPORT_H_
