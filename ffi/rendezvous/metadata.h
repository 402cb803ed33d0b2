// Writes the sizes and offsets of devices as words of a message, and reads them.
#ifndef FASTJAX_RENDEZVOUS_METADATA_H_
#define FASTJAX_RENDEZVOUS_METADATA_H_

#include <cstdint>
#include <vector>

#include "exchange/backend.h"
#include "rendezvous/process_group.h"
#include "rendezvous/process_rendezvous.h"

namespace fastjax {

// Writes those of the local devices of a group; `args` is by position.
void WriteMetadata(const Site& site, int32_t group, const std::vector<ExchangeArgs>& args, std::vector<int64_t>* words);
void WriteMetadata(const Site& site, int32_t group, const std::vector<CountsArgs>& args, std::vector<int64_t>* words);

// Completes `args`, by position, which has those of the local devices, with what the messages say of the others. The
// messages must live as long as the views in it.
Status ReadMetadata(const Site& site, int32_t group, const ProcessSession& session, std::vector<ExchangeArgs>* args);
Status ReadMetadata(const Site& site, int32_t group, const ProcessSession& session, std::vector<CountsArgs>* args);

}  // namespace fastjax

#endif  // FASTJAX_RENDEZVOUS_METADATA_H_
