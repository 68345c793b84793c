// SentencePiece's way with spaces: they become a visible character, which begins a word.
#pragma once

#include <string>

#include "worker/data/pre_tokenizer.h"

namespace tessera {

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

class Metaspace final : public PreTokenizer {
 public:
  // Where the character is put in front of a piece that does not begin with it.
  enum class PrependScheme { kAlways, kFirst, kNever };  // kFirst: at the start of the text

  explicit Metaspace(const JsonNode& node);

  void apply(Pieces& pieces, Regex::Matcher& matcher) const override;
  bool needs_origins() const override { return scheme_ == PrependScheme::kFirst; }

 private:
  std::string replacement_;  // one character
  PrependScheme scheme_;
  bool split_;
};

// Of a pre-tokenizer or a decoder. Throws UserError.
Metaspace::PrependScheme prepend_scheme_of(const JsonNode& metaspace);
std::string metaspace_of(const JsonNode& metaspace);

}  // namespace tessera
