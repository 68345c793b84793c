// The pre-tokenizers of tokenizer.json: they cut a text into the pieces that the model merges
// within. Another one is a class in a file of its own, and a row in the table of pre_tokenizer.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/data/aligned_text.h"
#include "worker/data/json.h"
#include "worker/data/regex.h"

namespace tessera {

// A text and the pieces it is cut into, in order; none is empty.
struct Pieces {
  AlignedText text;
  std::vector<Span> spans;
  std::vector<Span> scratch;
};

// Immutable: used by many threads, each with a Matcher of its own.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces, Regex::Matcher& matcher) const = 0;
  // Whether it has to know where in the original its pieces begin, tracked or not.
  virtual bool needs_origins() const { return false; }
};

// Whether what comes out is bytes in the alphabet of ByteLevel.
bool ends_in_byte_level(const JsonNode& node);

// With `keep_bytes` a ByteLevel at the end leaves bytes as they are, for a model that reads those.
// Throws UserError for a kind that is not known.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const JsonNode& node, bool keep_bytes);

}  // namespace tessera
