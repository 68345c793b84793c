#include "proto/spec/redact.h"

#include <algorithm>
#include <array>

namespace tessera::spec {
namespace {

constexpr std::string_view kMask = "***";
constexpr size_t kTokenIdLength = 12;
// What follows "Bearer " or "Basic " in prose is shorter.
constexpr size_t kMinBearerLength = 16;
constexpr size_t kMinHuggingFaceLength = 30;
// Numbers are set more often than secrets: max_token=512.
constexpr size_t kMinAssignedLength = 6;
// What the names of secrets end with, and as much of a name in a text as is looked at.
constexpr std::array<std::string_view, 9> kSecretNames{"token",   "secret",     "password",
                                                       "passwd",  "passphrase", "apikey",
                                                       "api_key", "access_key", "private_key"};
constexpr size_t kMaxNameLength = 64;

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_token_char(char c) {
  return is_alphanumeric(c) || std::string_view("-._~+/=").find(c) != std::string_view::npos;
}

// Length of the longest start of `text` whose characters are all in the class.
template <typename Class>
size_t span(std::string_view text, Class is_in) {
  return static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_in) - text.begin());
}

// Where a secret lies in the text that follows its mark. Length 0: there is none.
struct Secret {
  size_t begin = 0;
  size_t length = 0;
};

// tsr_ID_SECRET
Secret token(std::string_view rest) {
  const size_t id = span(rest, is_hex);
  if (id != kTokenIdLength || rest.size() == id || rest[id] != '_') return {};
  return {id + 1, span(rest.substr(id + 1), is_hex)};
}

Secret hugging_face(std::string_view rest) {
  const size_t length = span(rest, is_alphanumeric);
  return {0, length < kMinHuggingFaceLength ? 0 : length};
}

// What the text ends with of a name.
std::string_view last_name(std::string_view text) {
  const std::string_view tail = text.substr(text.size() - std::min(text.size(), kMaxNameLength));
  const auto is_name = [](char c) { return is_alphanumeric(c) || c == '_' || c == '-'; };
  const auto begin = std::find_if_not(tail.rbegin(), tail.rend(), is_name);
  return tail.substr(static_cast<size_t>(tail.rend() - begin));
}

// To the next thing in a command line, a query or a list. What is in brackets is a token of a
// tokenizer, as in eos_token=<|im_end|>.
Secret assigned(std::string_view rest) {
  const size_t quote = rest.starts_with('"') || rest.starts_with('\'') ? 1 : 0;
  rest.remove_prefix(quote);
  const auto is_value = [](char c) {
    return static_cast<unsigned char>(c) > ' ' &&
           std::string_view("&;,\"'<>(){}[]").find(c) == std::string_view::npos;
  };
  const size_t length = span(rest, is_value);
  return {quote, length < kMinAssignedLength ? 0 : length};
}

Secret bearer(std::string_view rest) {
  const size_t length = span(rest, is_token_char);
  // A token of ours names itself, and is seen as such.
  if (length < kMinBearerLength || rest.starts_with("tsr_")) return {};
  return {0, length};
}

// -----BEGIN EC PRIVATE KEY-----, to the end marker, or to the end of the text.
Secret private_key(std::string_view rest) {
  constexpr std::string_view kTitle = "PRIVATE KEY-----";
  constexpr std::string_view kEnd = "-----END ";
  const size_t title = rest.substr(0, 64).find(kTitle);
  // The kind of key before it is shown, and no other text.
  const auto is_label = [](char c) { return (c >= 'A' && c <= 'Z') || c == ' '; };
  if (title == rest.npos || span(rest, is_label) < title) return {};
  const size_t begin = title + kTitle.size();
  return {begin, std::min(rest.find(kEnd, begin), rest.size()) - begin};
}

// ://USER:PASSWORD@, and what becomes of it where a URL was taken for a path: :/USER:PASSWORD@
Secret userinfo(std::string_view rest) {
  const size_t slash = rest.starts_with('/') ? 1 : 0;
  rest.remove_prefix(slash);
  const auto is_authority = [](char c) {
    return static_cast<unsigned char>(c) > ' ' &&
           std::string_view("/?#\"'<>\\").find(c) == std::string_view::npos;
  };
  const std::string_view authority = rest.substr(0, span(rest, is_authority));
  const size_t at = authority.rfind('@');
  const bool has_password = authority.substr(0, at).find(':') != authority.npos;
  if (at == authority.npos || (slash == 0 && !has_password)) return {};
  return {slash, at};
}

struct Kind {
  std::string_view mark;
  Secret (*find)(std::string_view);
};

constexpr std::array<Kind, 7> kKinds{{{"tsr_", token},
                                      {"hf_", hugging_face},
                                      {"Bearer ", bearer},
                                      {"bearer ", bearer},
                                      {"Basic ", bearer},
                                      {"-----BEGIN ", private_key},
                                      {":/", userinfo}}};

std::string without_marked(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const auto kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& candidate) {
      return text.starts_with(candidate.mark);
    });
    if (kind == kKinds.end()) {
      clean += text.front();
      text.remove_prefix(1);
      continue;
    }
    clean += kind->mark;
    text.remove_prefix(kind->mark.size());
    const Secret secret = kind->find(text);
    if (secret.length == 0) continue;
    clean += text.substr(0, secret.begin);
    clean += kMask;
    text.remove_prefix(secret.begin + secret.length);
  }
  return clean;
}

std::string without_assigned(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const size_t sign = std::min(text.find('='), text.size() - 1);
    clean += text.substr(0, sign);
    const bool is_secret = text[sign] == '=' && names_secret(last_name(clean));
    clean += text[sign];
    text.remove_prefix(sign + 1);
    const Secret secret = is_secret ? assigned(text) : Secret{};
    if (secret.length == 0) continue;
    clean += text.substr(0, secret.begin);
    clean += kMask;
    text.remove_prefix(secret.begin + secret.length);
  }
  return clean;
}

}  // namespace

bool names_secret(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '-') plain += '_';
    if (c != '-') plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return std::any_of(kSecretNames.begin(), kSecretNames.end(),
                     [&](std::string_view ending) { return plain.ends_with(ending); });
}

// What has a mark goes first: it knows better where it ends.
std::string redact(std::string_view text) { return without_assigned(without_marked(text)); }

}  // namespace tessera::spec
