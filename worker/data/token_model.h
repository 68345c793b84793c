// The models of tokenizer.json: they turn a piece of text into tokens. Another one is a class in a
// file of its own, and a row in the table of token_model.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/json.h"

namespace tessera {

// Limits on what a tokenizer.json may hold.
inline constexpr int64_t kMaxTokens = int64_t{1} << 24;
inline constexpr size_t kMaxTokenBytes = 64 << 10;

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
  // Appends the tokens of a piece. Requires that it is not empty, and a scratch of this model.
  virtual void encode(std::string_view piece, Scratch& scratch,
                      std::vector<int32_t>& ids) const = 0;
  // `token` as tokenizer.json writes it.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // Entries of the vocabulary, as tokenizer.json writes them; an id without one is empty.
  virtual const std::vector<std::string>& tokens() const = 0;
  virtual int64_t num_tokens() const = 0;  // not counting ids without an entry
};

// Throws UserError for a kind that is not known.
std::unique_ptr<const TokenModel> make_token_model(const JsonNode& node);

}  // namespace tessera
