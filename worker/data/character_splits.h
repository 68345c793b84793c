// Pre-tokenizers that cut by what single characters are.
#pragma once

#include <functional>
#include <memory>

#include "worker/data/split.h"

namespace tessera {

// Characters of a class count as the matches.
class CharacterSplit final : public PreTokenizer {
 public:
  using Class = std::function<bool(char32_t)>;
  CharacterSplit(Class matches, SplitBehavior behavior);

  void apply(Pieces& pieces, Regex::Matcher& matcher) const override;

 private:
  Class matches_;
  SplitBehavior behavior_;
};

// Runs of word characters, and runs of what is neither that nor white space.
class WordSplit final : public PreTokenizer {
 public:
  void apply(Pieces& pieces, Regex::Matcher& matcher) const override;
};

// A fixed number of characters.
class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(const JsonNode& node);
  void apply(Pieces& pieces, Regex::Matcher& matcher) const override;

 private:
  int64_t length_;
};

// Those of the kinds CharDelimiterSplit, Digits, Punctuation, WhitespaceSplit and BertPreTokenizer.
std::unique_ptr<const PreTokenizer> make_delimiter_split(const JsonNode& node);
std::unique_ptr<const PreTokenizer> make_digits(const JsonNode& node);
std::unique_ptr<const PreTokenizer> make_punctuation(const JsonNode& node);
std::unique_ptr<const PreTokenizer> make_whitespace_split(const JsonNode& node);
std::unique_ptr<const PreTokenizer> make_bert(const JsonNode& node);

}  // namespace tessera
