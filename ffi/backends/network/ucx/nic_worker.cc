#include "backends/network/ucx/nic_worker.h"

#include <array>
#include <cstdlib>

namespace fastjax::network::ucx {
namespace {

struct Setting {
  const char* name;  // without UCX_
  const char* value;
};

// fastjax's settings of UCX, where the user has not set them.
constexpr Setting kSettings[] = {
    // A TCP peer could otherwise name an address to write to, and one that is late would write into memory that has
    // been given back. Without, it names a request, which is looked up.
    {"TCP_PUT_ENABLE", "n"},
    // A host that does not answer must not stop the thread that serves all others.
    {"TCP_CONN_NB", "y"},
    // Rows leave from where they are: with smaller segments they are copied first.
    {"TCP_TX_SEG_SIZE", "64k"},
    {"TCP_MAX_NUM_EPS", "inf"},
};

}  // namespace

std::unique_ptr<NicWorker> NicWorker::Open(const Library& library, int32_t index, const std::string& nic,
                                           const std::string& transports, int32_t processes, std::string* wrong) {
  std::unique_ptr<NicWorker> nic_worker(new NicWorker(library, index, nic));
  *wrong = nic_worker->OpenContext(transports, processes);
  if (wrong->empty()) *wrong = nic_worker->OpenWorker();
  if (wrong->empty()) return nic_worker;
  *wrong = "UCX (" + library.path + ") cannot open " + (nic.empty() ? "any NIC" : "NIC '" + nic + "'") +
           (transports.empty() ? "" : " with transports '" + transports + "'") + ": " + *wrong;
  return nullptr;
}

std::string NicWorker::Said(const char* what, ucs_status_t status) const {
  return std::string(what) + ": " + library_.ucs_status_string(status);
}

std::string NicWorker::OpenContext(const std::string& transports, int32_t processes) {
  ucp_config_t* read = nullptr;
  ucs_status_t status = library_.ucp_config_read(nullptr, nullptr, &read);
  if (status != UCS_OK) return Said("ucp_config_read", status);
  const std::unique_ptr<ucp_config_t, decltype(library_.ucp_config_release)> config(read, library_.ucp_config_release);
  for (const Setting& setting : kSettings) {
    const std::string variable = std::string("UCX_") + setting.name;
    if (std::getenv(variable.c_str()) != nullptr) continue;         // NOLINT(concurrency-mt-unsafe)
    library_.ucp_config_modify(read, setting.name, setting.value);  // or not: an older UCX may not know one of them
  }
  if (!nic_.empty()) status = library_.ucp_config_modify(read, "NET_DEVICES", nic_.c_str());
  if (status == UCS_OK && !transports.empty()) status = library_.ucp_config_modify(read, "TLS", transports.c_str());
  if (status != UCS_OK) return Said("ucp_config_modify", status);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<size_t>(processes);
  params.name = "fastjax";
  status = library_.ucp_init_version(kOldestMajor, kOldestMinor, &params, read, &context_);
  return status == UCS_OK ? "" : Said("ucp_init", status);
}

std::string NicWorker::OpenWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // opened by one thread, driven by another
  ucs_status_t status = library_.ucp_worker_create(context_, &params, &worker_);
  if (status != UCS_OK) return Said("ucp_worker_create", status);
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS;
  status = library_.ucp_worker_query(worker_, &attributes);
  if (status != UCS_OK) return Said("ucp_worker_query", status);
  address_.assign(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  library_.ucp_worker_release_address(worker_, attributes.address);
  status = library_.ucp_worker_get_efd(worker_, &event_fd_);
  return status == UCS_OK ? "" : Said("ucp_worker_get_efd", status);
}

NicWorker::~NicWorker() {
  if (worker_ != nullptr) library_.ucp_worker_destroy(worker_);
  if (context_ != nullptr) library_.ucp_cleanup(context_);
}

ucs_status_t NicWorker::SetReceiver(ucp_am_recv_callback_t receiver, void* argument) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = 0;
  params.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
  params.cb = receiver;
  params.arg = argument;
  return library_.ucp_worker_set_am_recv_handler(worker_, &params);
}

ucs_status_t NicWorker::Connect(const std::string& address, ucp_err_handler_cb_t failed, void* argument,
                                ucp_ep_h* endpoint) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = failed;
  params.err_handler.arg = argument;
  return library_.ucp_ep_create(worker_, &params, endpoint);
}

std::vector<std::string> NicWorker::TransportsOf(ucp_ep_h endpoint) const {
  constexpr unsigned kMost = 16;
  std::array<ucp_transport_entry_t, kMost> entries{};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = entries.data();
  attributes.transports.num_entries = kMost;
  attributes.transports.entry_size = sizeof(ucp_transport_entry_t);
  std::vector<std::string> names;
  if (library_.ucp_ep_query(endpoint, &attributes) != UCS_OK) return names;
  for (unsigned i = 0; i < attributes.transports.num_entries && i < kMost; ++i) {
    names.push_back(std::string(entries[i].transport_name) + "/" + entries[i].device_name);
  }
  return names;
}

}  // namespace fastjax::network::ucx
