// SentencePiece model files (tokenizer.model), for directories without a tokenizer.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "worker/data/added_tokens.h"
#include "worker/data/bpe.h"
#include "worker/data/unigram.h"

namespace tessera {

struct SentencePieceModel {
  bool is_unigram = false;
  std::vector<UnigramParts::Piece> pieces;  // by id
  std::vector<AddedToken> added;            // control and user-defined pieces
  std::string charsmap;                     // bytes of a Precompiled; empty: none
  bool byte_fallback = false;
  int32_t unk_id = 0;  // negative, as the other two: there is none
  int32_t bos_id = 1;
  int32_t eos_id = 2;
  std::string unk_piece;
  std::string bos_piece;
  std::string eos_piece;
};

// Throws UserError(field) naming the file: not such a model, too large, pieces that are not text.
SentencePieceModel read_sentencepiece(const std::filesystem::path& path, const std::string& field);

// The pieces as a vocabulary, with every way to put a piece together out of two others as a merge,
// in the order of the pieces.
BpeParts bpe_of(const SentencePieceModel& model);

}  // namespace tessera
