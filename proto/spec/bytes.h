// Numbers of bytes, as people read and write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::spec {

// "512 B", "1.5 MiB".
std::string format_bytes(int64_t bytes);

// Bytes of "512MiB", "80 GiB", "1.5GiB", "64GB" (powers of ten) or "1048576": a number above 0 and
// a unit (B, KB, KiB, MB, MiB, GB, GiB, TB, TiB; none: bytes) in any case. A broken byte is left
// off. Nothing for any other text, and for more than 1 PiB.
std::optional<int64_t> parse_bytes(const std::string& text);

// Bytes of tensors that a rank may hold, as above. Nothing also for less than 1 MiB, in which no
// job fits: who writes 80 means GiB.
std::optional<int64_t> parse_device_memory(const std::string& text);

// What a field for it must be, for the sentence that refuses it.
inline constexpr char kDeviceMemoryRule[] =
    "a number with its unit, such as 512MiB or 80GiB (alone it counts bytes), from 1MiB to 1024TiB";

// Of a GPU's memory, what tensors can have: the driver's context and libraries take the rest before
// the first of them.
int64_t tensor_bytes_of_gpu(int64_t memory_bytes);

}  // namespace tessera::spec
