// Unicode's normalization forms.
#pragma once

#include <vector>

#include "worker/data/normalizer.h"

namespace tessera {

class UnicodeForm final : public Normalizer {
 public:
  // `compatible`: NFKC and NFKD; `composed`: NFC and NFKC.
  UnicodeForm(bool compatible, bool composed);

  void apply(AlignedText& text) const override;

 private:
  struct Part;

  // Whether the form leaves the code point alone whatever surrounds it.
  bool inert(char32_t code_point) const;
  size_t first_change(std::string_view text) const;
  std::vector<Part> decompose_and_order(std::string_view text) const;

  const bool compatible_;
  const bool composed_;
  uint8_t first_lead_ = 0xFF;  // a character whose UTF-8 begins with a smaller byte is inert
  std::vector<bool> inert_;
};

}  // namespace tessera
