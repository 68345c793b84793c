// The models of tokenizer.json: they turn a piece of text into tokens. Another one is a class in a
// file of its own, and a row in the table of token_model.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/aligned_text.h"
#include "worker/data/json.h"
#include "worker/data/vocabulary.h"

namespace tessera {

// Immutable: used by many threads, each with a Scratch of its own.
class TokenModel {
 public:
  // What one thread needs to encode.
  class Scratch {
   public:
    virtual ~Scratch() = default;
  };

  virtual ~TokenModel() = default;
  virtual std::unique_ptr<Scratch> make_scratch() const = 0;
  // Appends the tokens of a piece and, where `spans` is not null, the bytes of the piece that each
  // stands for. Requires that the piece is not empty, and a scratch of this model. Throws
  // std::invalid_argument when the piece cannot be written in the model's tokens.
  virtual void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
                      std::vector<Span>* spans) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  // Entries of the vocabulary. (One of a list counts as often as it is there.)
  virtual int64_t num_tokens() const { return vocabulary().size(); }
  // Whether pieces are bytes instead of what stands for them in the alphabet of ByteLevel.
  virtual bool reads_bytes() const { return false; }
  virtual bool is_bpe() const { return false; }
};

// `model` is that of tokenizer.json; `options` is the same, or says in its place all but the
// vocabulary and the merges. With `bytes` the pieces come from ByteLevel. Throws UserError for a
// kind that is not known.
std::unique_ptr<const TokenModel> make_token_model(const JsonNode& options, const JsonNode& model,
                                                   bool bytes);

}  // namespace tessera
