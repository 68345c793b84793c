// Bytes of any number between the ranks of a group.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "worker/parallel/collectives.h"

namespace tessera {

// What each rank gave, by rank. Collective. Buffers are on `device`, where the group's tensors are,
// and charged to Owner::kCommunication.
std::vector<std::string> all_gather_bytes(Collectives& group, at::Device device,
                                          const std::string& mine);

// What rank 0 gave; others' `mine` does not matter. Collective, likewise.
std::string broadcast_bytes(Collectives& group, at::Device device, const std::string& mine);

// Allocates what all_gather_bytes() does where some rank gives `most` bytes. `device`: of tensors
// without data.
void rehearse_all_gather_bytes(Collectives& group, at::Device device, int64_t most);

}  // namespace tessera
