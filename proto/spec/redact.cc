#include "proto/spec/redact.h"

#include <algorithm>
#include <array>

namespace tessera::spec {
namespace {

constexpr std::string_view kMask = "***";
constexpr size_t kTokenIdLength = 12;
// What follows "Bearer " in prose is shorter.
constexpr size_t kMinBearerLength = 16;

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool is_token_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("-._~+/=").find(c) != std::string_view::npos;
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

constexpr std::array<Kind, 5> kKinds{{{"tsr_", token},
                                      {"Bearer ", bearer},
                                      {"bearer ", bearer},
                                      {"-----BEGIN ", private_key},
                                      {":/", userinfo}}};

}  // namespace

std::string redact(std::string_view text) {
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

}  // namespace tessera::spec
