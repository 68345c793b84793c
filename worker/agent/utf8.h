// Text of unknown origin, made fit for a protobuf string.
#pragma once

#include <string>
#include <string_view>

namespace tessera::agent {

// `bytes` with U+FFFD in place of each byte that is not part of well-formed UTF-8 (RFC 3629).
std::string to_valid_utf8(std::string_view bytes);

}  // namespace tessera::agent
