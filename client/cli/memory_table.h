// Tables of a rank's memory.
#pragma once

#include <string>
#include <vector>

#include "tessera/v1/telemetry.pb.h"

namespace tessera::cli {

using Owners = google::protobuf::RepeatedPtrField<v1::OwnerBytes>;

// Those with the most at the peak first.
std::vector<v1::OwnerBytes> by_size(const Owners& owners);

// "118.2 MiB (optimizer 40.1 MiB, ...)": the peak and its largest owners.
std::string compact_memory(const v1::MemorySnapshot& memory);

// Bytes by owner, now and at the peak, on the device and in host memory where there are any.
std::vector<std::string> memory_table(const v1::MemorySnapshot& memory);

// What a rank held when an allocation was refused: by owner, block and phase, the largest first;
// and what would help.
std::vector<std::string> out_of_memory_table(const v1::OutOfMemory& refusal);

}  // namespace tessera::cli
