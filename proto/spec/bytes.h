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

// What a field for parse_bytes must be, for the sentence that refuses it.
inline constexpr char kBytesRule[] =
    "a number of bytes with its unit, such as 512MiB or 80GiB, at most 1024TiB";

}  // namespace tessera::spec
