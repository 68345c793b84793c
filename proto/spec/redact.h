// Takes secrets out of text that is about to be logged, stored or sent.
#pragma once

#include <string>
#include <string_view>

namespace tessera::spec {

// `text` without the secrets that can be told from their looks: the secret half of Tessera's
// tokens, tokens of Hugging Face (hf_...), what follows "Bearer " and "Basic ", private keys in
// PEM, user and password in URLs, and what is set by NAME=VALUE where the name says that it is one,
// in a URL's query, too. Each becomes "***". All else stays byte for byte. Linear in the text.
std::string redact(std::string_view text);

// Whether a name, as of an environment variable, says that what it names is a secret: HF_TOKEN,
// api-key, PGPASSWORD.
bool names_secret(std::string_view name);

}  // namespace tessera::spec
