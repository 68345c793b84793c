// Takes secrets out of text that is about to be logged, stored or sent.
#pragma once

#include <string>
#include <string_view>

namespace tessera::spec {

// `text` without the secrets that can be told from their looks: the secret half of Tessera's
// tokens, what follows "Bearer ", private keys in PEM, and user and password in URLs. Each becomes
// "***". All else stays byte for byte. Linear in the text.
std::string redact(std::string_view text);

}  // namespace tessera::spec
