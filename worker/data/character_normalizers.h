// Normalizers that look at one character after the other.
#pragma once

#include "worker/data/normalizer.h"
#include "worker/data/unicode_form.h"

namespace tessera {

class Lowercase final : public Normalizer {
 public:
  void apply(AlignedText& text) const override;
};

// White space at the ends.
class StripSpace final : public Normalizer {
 public:
  explicit StripSpace(const JsonNode& node);
  void apply(AlignedText& text) const override;

 private:
  bool left_;
  bool right_;
};

// Combining marks.
class StripAccents final : public Normalizer {
 public:
  void apply(AlignedText& text) const override;
};

// What SentencePiece does for translation models: control characters go, odd spaces become spaces.
class Nmt final : public Normalizer {
 public:
  void apply(AlignedText& text) const override;
};

// A text put in front of one that is not empty.
class Prepend final : public Normalizer {
 public:
  explicit Prepend(const JsonNode& node);
  void apply(AlignedText& text) const override;

 private:
  std::string content_;
};

// BERT's: control characters go, CJK characters get spaces around them, accents and capitals go.
class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const JsonNode& node);
  void apply(AlignedText& text) const override;

 private:
  bool clean_text_;
  bool chinese_;
  bool lowercase_;
  bool strip_accents_;
  UnicodeForm nfd_{false, false};
};

// Each byte becomes its character of GPT-2's alphabet.
class ByteLevelNormalizer final : public Normalizer {
 public:
  void apply(AlignedText& text) const override;
};

}  // namespace tessera
