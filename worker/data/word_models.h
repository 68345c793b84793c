// WordLevel and WordPiece: models that look whole words up.
#pragma once

#include <string>

#include "worker/data/token_model.h"

namespace tessera {

// A word is a token, or unknown.
class WordLevel final : public TokenModel {
 public:
  // Throws UserError: no vocabulary, an unknown token that is not in it.
  WordLevel(const JsonNode& options, const JsonNode& model);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
              std::vector<Span>* spans) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  int32_t unk_id_;
};

// The longest token that begins a word, then the longest that goes on with it, and so on.
class WordPiece final : public TokenModel {
 public:
  // Throws UserError: no vocabulary, an unknown token that is not in it.
  WordPiece(const JsonNode& options, const JsonNode& model);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
              std::vector<Span>* spans) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  class Work;

  // Whether the word can be written in tokens; work.ids and work.spans are they.
  bool split(std::string_view word, Work& work) const;

  Vocabulary vocabulary_;
  int32_t unk_id_;
  std::string continuing_subword_prefix_;
  int64_t max_characters_;  // of a word that is not unknown
  size_t max_token_bytes_ = 0;
};

}  // namespace tessera
