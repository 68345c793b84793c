// The decoders of tokenizer.json: they make text of tokens, one after the other. Another one is a
// class and a row in decoder.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/data/json.h"

namespace tessera {

// Immutable: used by many threads.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Turns tokens into pieces of text, which stand one behind the other in the end.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // Whether it does nothing but read the alphabet of ByteLevel, which gives bytes.
  virtual bool is_byte_level() const { return false; }
};

// Throws UserError for a kind that is not known.
std::unique_ptr<const Decoder> make_decoder(const JsonNode& node);

// Takes away the space before punctuation and contractions that a model of words leaves.
std::string clean_up_spaces(std::string text);

}  // namespace tessera
