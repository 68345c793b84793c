// Replace, a normalizer and a decoder: each match of a pattern gives way to a text.
#pragma once

#include <optional>
#include <string>

#include "worker/data/normalizer.h"
#include "worker/data/regex.h"

namespace tessera {

class Replace final : public Normalizer {
 public:
  explicit Replace(const JsonNode& node);

  // Throws std::runtime_error when the pattern takes too long.
  void apply(AlignedText& text) const override;
  std::string apply(std::string_view text) const;

 private:
  std::string literal_;  // what to look for, where there is no regex_
  std::optional<Regex> regex_;
  std::string content_;
};

}  // namespace tessera
