#include "backends/network/ucx/addresses.h"

#include <cstring>

namespace fastjax::network::ucx {
namespace {

constexpr uint64_t kMagic = 0x35307865726977ff;  // and the version of what follows
constexpr uint64_t kMostNicWorkers = 1024;

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void PutText(std::string* out, const std::string& text) {
  Put(out, uint64_t{text.size()});
  *out += text;
}

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    T value{};
    if (!Has(sizeof(T))) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string TakeText() {
    const auto size = Take<uint64_t>();
    if (!Has(size)) return "";
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  bool good() const { return good_; }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  bool Has(uint64_t size) { return good_ = good_ && size <= bytes_.size() - at_; }

  const std::string& bytes_;
  size_t at_ = 0;
  bool good_ = true;
};

}  // namespace

std::string Encode(const Addresses& addresses) {
  std::string out;
  Put(&out, kMagic);
  Put(&out, addresses.process);
  Put(&out, addresses.incarnation);
  Put(&out, addresses.read_probe);
  PutText(&out, addresses.host);
  Put(&out, uint64_t{addresses.nic_workers.size()});
  for (const std::string& nic_worker : addresses.nic_workers) PutText(&out, nic_worker);
  return out;
}

std::string Decode(const std::string& bytes, Addresses* addresses) {
  Reader reader(bytes);
  if (reader.Take<uint64_t>() != kMagic) return "not addresses of this version of fastjax";
  addresses->process = reader.Take<int32_t>();
  addresses->incarnation = reader.Take<uint64_t>();
  addresses->read_probe = reader.Take<ReadProbe>();
  addresses->host = reader.TakeText();
  const auto nic_workers = reader.Take<uint64_t>();
  if (reader.good() && nic_workers >= 1 && nic_workers <= kMostNicWorkers) {
    addresses->nic_workers.clear();
    for (uint64_t i = 0; i < nic_workers && reader.good(); ++i) addresses->nic_workers.push_back(reader.TakeText());
    if (reader.good() && reader.at_end()) return "";
  }
  return "addresses of " + std::to_string(bytes.size()) + " bytes that are damaged";
}

}  // namespace fastjax::network::ucx
