// Declares how sizes and offsets of devices are written as words of a message, and read.
#ifndef FASTJAX_RENDEZVOUS_METADATA_H_
#define FASTJAX_RENDEZVOUS_METADATA_H_

#include <cstdint>
#include <vector>

#include "exchange/backend.h"
#include "rendezvous/process_group.h"
#include "rendezvous/process_rendezvous.h"

namespace fastjax {

// Writes the sizes and offsets of the local devices of a group; `args` is by position.
void WriteMetadata(const Site& site, int32_t group, const std::vector<ExchangeArgs>& args, std::vector<int64_t>* words);
void WriteMetadata(const Site& site, int32_t group, const std::vector<CountsArgs>& args, std::vector<int64_t>* words);

// Adds to `args`, by position, the sizes and offsets of devices of other processes, from their messages. The messages
// must live as long as the views in `args`.
Status ReadMetadata(const Site& site, int32_t group, const ProcessSession& session, std::vector<ExchangeArgs>* args);
Status ReadMetadata(const Site& site, int32_t group, const ProcessSession& session, std::vector<CountsArgs>* args);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_METADATA_H_
