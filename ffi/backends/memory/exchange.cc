#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backends/memory/job_builder.h"
#include "backends/memory/memory_backend.h"
#include "execution/prepared.h"
#include "execution/sum_job.h"
#include "rendezvous/device_operation.h"
#include "rendezvous/rendezvous.h"
#include "runtime/launch_order.h"
#include "runtime/meter.h"

namespace fastjax::memory {
namespace {

using Session = Rendezvous<ExchangeArgs>::Session;

// Below this, waking the pool costs more than it saves.
constexpr int64_t kInlineBytes = 128 << 10;

// What one running exchange works in.
struct Work {
  Launch launch;
  Prepared prepared;
  JobBuilder builder;
  SumJob sum;
  PoolJob* job = nullptr;  // of the two, what is to be done
};

struct ExchangeState {
  ExchangeState(std::shared_ptr<const CallSite> s, ExchangeOptions o)
      : site(std::move(s)),
        options(std::move(o)),
        meter(site, options, false),
        ranks(static_cast<size_t>(site->group_size)) {
    std::iota(ranks.begin(), ranks.end(), 0);
  }

  void Execute(const std::shared_ptr<ExchangeState>& self, Session* session, int32_t last) {
    const Launch launch = meter.Begin();
    const int64_t order = NextLaunch();
    std::unique_ptr<Work> work;
    const Status status = Guarded([&] {
      work = TakeWork();
      work->launch = launch;
      return Prepare(work.get(), session);
    });
    if (status.ok() && work->job->bytes() > kInlineBytes && HandOver(self, session, order, &work)) return;
    if (status.ok()) work->job->RunInline();
    status.ok() ? Note(*work) : meter.End(launch, status, {});
    ReturnWork(std::move(work));
    session->Finish(status, last);
  }

  // Has the pool do the work and end the session; false where the pool cannot take it.
  bool HandOver(const std::shared_ptr<ExchangeState>& self, Session* session, int64_t order,
                std::unique_ptr<Work>* work) {
    Work* const raw = work->release();
    const Status taken = Guarded([&] {
      CopyPool::Get().Run(raw->job, order, [self, session, raw] {
        self->Note(*raw);
        self->ReturnWork(std::unique_ptr<Work>(raw));
        session->Finish(Status::Ok());
      });
      return Status::Ok();
    });
    if (!taken.ok()) work->reset(raw);
    return taken.ok();
  }

  void Note(const Work& work) { meter.End(work.launch, Status::Ok(), work.prepared.seen()); }

  Status Prepare(Work* work, Session* session) const {
    const auto& args = session->args();
    bool alike = true;  // there are no other processes
    Status status = work->prepared.Load(*site, session->group(), args, options, ranks, &alike, &work->launch);
    if (!status.ok()) return status;
    GroupTraffic& traffic = work->prepared.traffic();
    if (options.reverse && (options.indexed || traffic.LandingsOverlap())) return Sum(work, args);
    work->job = work->builder.job();
    return work->builder.Build(*site, args, work->prepared.plans(), traffic);
  }

  // Rows come straight from their origins, without staging.
  Status Sum(Work* work, const std::vector<ExchangeArgs>& args) const {
    if (Status status = CheckSummable(*site, args.front()); !status.ok()) return status;
    work->job = &work->sum;
    work->sum.Begin(args.front());
    for (int32_t target = 0; target < site->group_size; ++target) {
      const auto source = [&](int32_t origin, const Run& run, int64_t) -> kernels::Summand {
        return args[site->position_at[origin]].SummandAt(run.source_row);
      };
      work->sum.Add(work->prepared.traffic(), site->group_size, target, args[site->position_at[target]], source);
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
  Meter meter;
  std::vector<int32_t> ranks;  // all
  std::mutex mutex;
  size_t works = 0;  // made so far
  std::vector<std::unique_ptr<Work>> free;
};

}  // namespace

std::unique_ptr<Exchange> MemoryBackend::OpenExchange(std::shared_ptr<const CallSite> site, ExchangeOptions options) {
  return std::make_unique<DeviceOperation<Exchange, ExchangeArgs, ExchangeState>>(
      std::make_shared<ExchangeState>(std::move(site), std::move(options)));
}

}  // namespace fastjax::memory
