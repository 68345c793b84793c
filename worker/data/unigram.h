// SentencePiece's unigram model: of all ways to write a piece in tokens, the likeliest.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "worker/data/byte_trie.h"
#include "worker/data/token_model.h"

namespace tessera {

// What a model is made of.
struct UnigramParts {
  struct Piece {
    std::string text;
    double score;  // log probability
  };

  std::vector<Piece> pieces;  // by id
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;  // an unknown piece becomes its bytes, <0x00> to <0xFF>
};

// Throws UserError: no pieces, scores that are not numbers, an unknown token out of range.
UnigramParts read_unigram(const JsonNode& options, const JsonNode& model);

class Unigram final : public TokenModel {
 public:
  explicit Unigram(UnigramParts parts);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
              std::vector<Span>* spans) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  int64_t num_tokens() const override { return static_cast<int64_t>(scores_.size()); }

 private:
  class Work;

  void find_best(std::string_view piece, Work& work) const;
  void put(std::string_view piece, Span span, std::vector<int32_t>& ids,
           std::vector<Span>* spans) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  ByteTrie trie_;
  std::optional<int32_t> unk_id_;
  double unk_score_ = 0;
  bool byte_fallback_ = false;
  std::array<int32_t, 256> byte_ids_{};  // -1: there is none
};

}  // namespace tessera
