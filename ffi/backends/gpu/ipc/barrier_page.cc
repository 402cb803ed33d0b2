#include "backends/gpu/ipc/barrier_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <system_error>
#include <utility>

namespace fastjax::gpu::ipc {
namespace {

constexpr const char* kFolder = "/dev/shm";

std::string FileOf(const PageName& name) {
  return "/fastjax-" + std::to_string(name.process) + "-" + std::to_string(name.random[0]) + "-" +
         std::to_string(name.random[1]);
}

Status Failed(const char* what) {
  return Status::Unavailable(std::string("could not ") + what + ": " + std::generic_category().message(errno));
}

size_t BytesFor(int32_t devices) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = static_cast<size_t>(kernels::BarrierLines(devices)) * sizeof(kernels::BarrierLine);
  return (bytes + page - 1) / page * page;
}

}  // namespace

uint64_t HostId() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat folder{};
  if (stat(kFolder, &folder) != 0) folder = {};
  const uint64_t id = std::hash<std::string>{}(boot + " " + std::to_string(folder.st_dev));
  return id == 0 ? 1 : id;
}

BarrierPage::BarrierPage(std::shared_ptr<Gpu> gpu, const PageName& name, int32_t devices)
    : gpu_(std::move(gpu)), name_(name), bytes_(BytesFor(devices)) {}

Status BarrierPage::Make(std::shared_ptr<Gpu> gpu, int32_t devices, std::unique_ptr<BarrierPage>* page) {
  PageName name;
  if (getrandom(name.random, sizeof(name.random), 0) != static_cast<ssize_t>(sizeof(name.random))) {
    return Failed("draw a random name");
  }
  name.process = static_cast<uint64_t>(getpid());
  std::unique_ptr<BarrierPage> made(new BarrierPage(std::move(gpu), name, devices));
  const int file = shm_open(FileOf(name).c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return Failed("make shared memory of the host");
  made->linked_ = true;
  // Allocated now: a full /dev/shm would otherwise kill whoever touches it.
  const int error = posix_fallocate(file, 0, static_cast<off_t>(made->bytes_));
  errno = error;
  Status status = error == 0 ? made->Map(file) : Failed("make shared memory of the host");
  close(file);
  if (status.ok()) *page = std::move(made);
  return status;
}

Status BarrierPage::Open(std::shared_ptr<Gpu> gpu, const PageName& name, int32_t devices,
                         std::unique_ptr<BarrierPage>* page) {
  std::unique_ptr<BarrierPage> made(new BarrierPage(std::move(gpu), name, devices));
  const int file = shm_open(FileOf(name).c_str(), O_RDWR | O_CLOEXEC, 0);
  if (file < 0) return Failed("open another process's shared memory");
  struct stat info{};
  const bool fits = fstat(file, &info) == 0 && info.st_size == static_cast<off_t>(made->bytes_);
  Status status = fits ? made->Map(file) : Status::Unavailable("another process's shared memory has another size");
  close(file);
  if (status.ok()) *page = std::move(made);
  return status;
}

Status BarrierPage::Map(int file) {
  void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return Failed("map shared memory of the host");
  lines_ = static_cast<kernels::BarrierLine*>(at);
  int code = gpu_->driver().GetDevice(&device_);
  if (code == 0) code = gpu_->driver().RegisterHost(at, bytes_);
  registered_ = code == 0;
  return gpu_->Check(code, 0, "register shared memory of the host");
}

BarrierPage::~BarrierPage() {
  Unlink();
  if (registered_) {
    DeviceScope scope(*gpu_);
    static_cast<void>(scope.Choose(device_));
    gpu_->driver().UnregisterHost(lines_);
  }
  if (lines_ != nullptr) munmap(lines_, bytes_);
}

void BarrierPage::Unlink() {
  if (std::exchange(linked_, false)) shm_unlink(FileOf(name_).c_str());
}

Status BarrierPage::LinesOn(int32_t device, kernels::BarrierLine** lines) const {
  DeviceScope scope(*gpu_);
  if (Status status = scope.Choose(device); !status.ok()) return status;
  void* there = nullptr;
  const int code = gpu_->driver().FindRegistered(&there, lines_);
  *lines = static_cast<kernels::BarrierLine*>(there);
  return gpu_->Check(code, device, "find shared memory of the host");
}

}  // namespace fastjax::gpu::ipc
