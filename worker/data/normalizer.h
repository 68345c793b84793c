// The normalizers of tokenizer.json. Another one is a class in a file of its own, and a row in the
// table of normalizer.cc.
#pragma once

#include <memory>
#include <vector>

#include "worker/data/aligned_text.h"
#include "worker/data/json.h"

namespace tessera {

// Immutable: used by many threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Requires valid UTF-8, and leaves it so.
  virtual void apply(AlignedText& text) const = 0;
};

// One after the other; null where there are none.
std::unique_ptr<const Normalizer> chain(std::vector<std::unique_ptr<const Normalizer>> parts);

// Throws UserError for a kind that is not known.
std::unique_ptr<const Normalizer> make_normalizer(const JsonNode& node);

}  // namespace tessera
