// Unicode's canonical composition (NFC).
#pragma once

#include <utf8proc.h>

#include <vector>

#include "worker/data/normalizer.h"

namespace tessera {

class Nfc final : public Normalizer {
 public:
  explicit Nfc(const JsonNode& node);
  Nfc();

  void apply(AlignedText& text) const override;

 private:
  // Whether the code point is left alone by NFC whatever surrounds it.
  bool inert(char32_t code_point) const;
  size_t first_change(std::string_view text) const;

  std::vector<bool> inert_;
};

}  // namespace tessera
