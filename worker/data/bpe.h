// Byte-pair encoding, over bytes (GPT-2 and its kin) or over characters (SentencePiece's way).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "worker/data/merge_table.h"
#include "worker/data/token_model.h"

namespace tessera {

// What a model is made of.
struct BpeParts {
  struct Pair {
    int32_t left;
    int32_t right;
    int32_t merged;
  };

  Vocabulary vocabulary;
  std::vector<Pair> merges;  // the sooner, the earlier
  std::string unk_token;     // empty: characters that are no token vanish
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;       // unknown characters beside each other are one token
  bool byte_fallback = false;  // an unknown character becomes its bytes, <0x00> to <0xFF>
  bool ignore_merges = false;  // a piece that is a token is that token, merges or not
};

// Throws UserError: no vocabulary or merges, ids out of range or twice, merges of tokens there are
// not, dropout, an unknown token that is not in the vocabulary.
BpeParts read_bpe(const JsonNode& options, const JsonNode& model);

class Bpe final : public TokenModel {
 public:
  // With `bytes` pieces are wanted as bytes, which is done where the vocabulary has all of them.
  Bpe(BpeParts parts, bool bytes);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
              std::vector<Span>* spans) const override;
  const Vocabulary& vocabulary() const override { return parts_.vocabulary; }
  bool reads_bytes() const override { return reads_bytes_; }
  bool is_bpe() const override { return true; }

 private:
  class Work;

  void prepare_bytes();
  void prepare_characters();
  void prepare_cuts();
  size_t word_end(std::string_view piece, size_t begin) const;
  void split_bytes(std::string_view word, Work& work) const;
  void split_characters(std::string_view word, Work& work) const;
  int32_t id_of_character(std::string_view character, bool first, bool last) const;
  bool fall_back(std::string_view character, Work& work) const;
  void merge(Work& work) const;
  void merge_short(Work& work) const;
  void merge_long(Work& work) const;

  BpeParts parts_;
  MergeTable merges_;
  bool reads_bytes_ = false;
  int32_t unk_id_ = -1;
  std::array<int32_t, 256> byte_ids_{};  // of bytes, or of their fallbacks; -1: there is none
  std::vector<uint32_t> num_bytes_;      // of each token, where reads_bytes_
  std::vector<int32_t> character_ids_;   // by code point; -1: not a token
  bool cuts_words_ = false;              // no merge crosses the front of a metaspace ...
  std::vector<char32_t> crossing_;       // ... but behind these
};

}  // namespace tessera
