#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/in_process/in_process.h"
#include "transport/in_process/job_builder.h"
#include "transport/in_process/rendezvous.h"
#include "transport/traffic.h"

namespace fastjax::transport::in_process {
namespace {

using Session = Rendezvous<ExchangeArgs>::Session;

// Below this, waking the pool costs more than it saves.
constexpr int64_t kInlineBytes = 128 << 10;

// What one running exchange works in.
struct Work {
  GroupTraffic traffic;
  std::vector<int32_t> planned;  // the tables, where the exchange plans itself
  std::vector<LocalTable> local_tables;
  std::vector<const int32_t*> tables;  // by rank
  JobBuilder builder;
};

class InProcessExchange final : public Exchange {
 public:
  InProcessExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options)
      : core_(std::make_shared<Core>(std::move(site), std::move(options))),
        rendezvous_(Rendezvous<ExchangeArgs>::Create(
            core_->site, [core = core_](Session* session, int32_t last) { core->Execute(core, session, last); })) {}

  void Start(int64_t run_id, int32_t partition, ExchangeArgs args, Completion done) override {
    const CallSite& site = *core_->site;
    rendezvous_->Arrive(run_id, site.group_of[partition], site.position_of[partition], args, std::move(done));
  }

 private:
  struct Core {
    Core(std::shared_ptr<const CallSite> s, ExchangeOptions o) : site(std::move(s)), options(std::move(o)) {}

    void Execute(const std::shared_ptr<Core>& self, Session* session, int32_t last) {
      std::unique_ptr<Work> work;
      const Status status = Guarded([&] {
        work = TakeWork();
        return Prepare(work.get(), session);
      });
      if (status.ok() && work->builder.job()->bytes() > kInlineBytes && HandOver(self, session, &work)) return;
      if (status.ok()) work->builder.job()->RunInline();
      ReturnWork(std::move(work));
      session->Finish(status, last);
    }

    // Has the pool do the work and end the session; false where the pool cannot take it.
    bool HandOver(const std::shared_ptr<Core>& self, Session* session, std::unique_ptr<Work>* work) {
      Work* const raw = work->release();
      const Status taken = Guarded([&] {
        CopyPool::Get().Run(raw->builder.job(), [self, session, raw] {
          self->ReturnWork(std::unique_ptr<Work>(raw));
          session->Finish(Status::Ok());
        });
        return Status::Ok();
      });
      if (!taken.ok()) work->reset(raw);
      return taken.ok();
    }

    Status Prepare(Work* work, Session* session) const {
      const auto& args = session->args();
      GroupTraffic& traffic = work->traffic;
      work->builder.job()->Clear();
      if (Status status = traffic.Load(*site, session->group(), args, options.reverse); !status.ok()) return status;
      if (Status status = options.plan ? Plan(work) : TakeTables(work, session); !status.ok()) return status;
      if (options.reverse && traffic.LandingsOverlap()) return Sum(traffic, args);
      return work->builder.Build(*site, args, work->tables, traffic, options.transposed_table != options.reverse);
    }

    Status TakeTables(Work* work, Session* session) const {
      const auto& args = session->args();
      work->tables.clear();
      for (int32_t rank = 0; rank < site->group_size; ++rank) {
        work->tables.push_back(args[site->position_at[rank]].table);
      }
      return work->traffic.CheckTables(*site, session->group(), args, options.transposed_table);
    }

    Status Plan(Work* work) const {
      const auto devices = static_cast<size_t>(site->group_size);
      const auto words = static_cast<size_t>(options.table_words);
      work->planned.resize(devices * words);
      work->local_tables.clear();
      work->tables.clear();
      for (size_t rank = 0; rank < devices; ++rank) {
        work->local_tables.push_back({static_cast<int32_t>(rank), &work->planned[rank * words]});
        work->tables.push_back(&work->planned[rank * words]);
      }
      return options.plan(work->traffic.sent(), work->local_tables);
    }

    // Rows that land on each other are summed by rank of their origin, so that the result does not depend on who
    // was first. Rare (a slice that was sent to several devices, on the way back), hence not staged.
    Status Sum(const GroupTraffic& traffic, const std::vector<ExchangeArgs>& args) const {
      if (args.front().element == kernels::ElementKind::kOpaque) {
        return Status::Invalid(site->Prefix() +
                               "input slices overlap, and gradients of this element type cannot be summed.");
      }
      const int64_t row_bytes = args.front().row_bytes;
      if (row_bytes == 0) return Status::Ok();  // buffers without bytes may have no address
      for (int32_t target = 0; target < site->group_size; ++target) {
        const ExchangeArgs& to = args[site->position_at[target]];
        const auto each = [&](auto&& visit) {
          for (int32_t origin = 0; origin < site->group_size; ++origin) {
            const std::byte* source = args[site->position_at[origin]].source;
            traffic.ForEachRun(origin, target, 0, traffic.rows(origin, target), [&](const Run& run) {
              visit(to.destination + run.destination_row * row_bytes, source + run.source_row * row_bytes,
                    static_cast<size_t>(run.rows * row_bytes));
            });
          }
        };
        each([](std::byte* dst, const std::byte*, size_t bytes) { std::memset(dst, 0, bytes); });
        each([&](std::byte* dst, const std::byte* src, size_t bytes) { kernels::Add(dst, src, bytes, to.element); });
      }
      return Status::Ok();
    }

    std::unique_ptr<Work> TakeWork() {
      const std::lock_guard<std::mutex> lock(mutex);
      if (free.empty()) {
        free.reserve(++works);  // returning one must not want memory: devices wait for what comes after it
        return std::make_unique<Work>();
      }
      auto work = std::move(free.back());
      free.pop_back();
      return work;
    }

    void ReturnWork(std::unique_ptr<Work> work) {
      if (work == nullptr) return;
      work->builder.Release();
      const std::lock_guard<std::mutex> lock(mutex);
      free.push_back(std::move(work));
    }

    const std::shared_ptr<const CallSite> site;
    const ExchangeOptions options;
    std::mutex mutex;
    size_t works = 0;  // made so far
    std::vector<std::unique_ptr<Work>> free;
  };

  std::shared_ptr<Core> core_;
  std::shared_ptr<Rendezvous<ExchangeArgs>> rendezvous_;
};

}  // namespace

InProcessTransport& InProcessTransport::Get() {
  static auto* transport = new InProcessTransport;
  return *transport;
}

std::unique_ptr<Exchange> InProcessTransport::OpenExchange(std::shared_ptr<const CallSite> site,
                                                           ExchangeOptions options) {
  return std::make_unique<InProcessExchange>(std::move(site), std::move(options));
}

}  // namespace fastjax::transport::in_process
