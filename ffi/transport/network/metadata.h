// The sizes and offsets of devices, as words of a message.
#ifndef FASTJAX_TRANSPORT_NETWORK_METADATA_H_
#define FASTJAX_TRANSPORT_NETWORK_METADATA_H_

#include <cstdint>
#include <vector>

#include "transport/network/meetings.h"
#include "transport/network/site.h"
#include "transport/transport.h"

namespace fastjax::transport::network {

// Of the local devices of a group; `args` by position.
void WriteMetadata(const Site& site, int32_t group, const std::vector<ExchangeArgs>& args, std::vector<int64_t>* words);
void WriteMetadata(const Site& site, int32_t group, const std::vector<CountsArgs>& args, std::vector<int64_t>* words);

// Completes `args`, by position, which has those of the local devices, with what the letters say of the others. The
// letters must live as long as the views in it.
Status ReadMetadata(const Site& site, int32_t group, const Meeting& meeting, std::vector<ExchangeArgs>* args);
Status ReadMetadata(const Site& site, int32_t group, const Meeting& meeting, std::vector<CountsArgs>* args);

}  // namespace fastjax::transport::network

#endif  // FASTJAX_TRANSPORT_NETWORK_METADATA_H_
