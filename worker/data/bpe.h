// Byte-pair encoding over bytes.
#pragma once

#include <array>
#include <unordered_map>

#include "worker/data/merge_table.h"
#include "worker/data/token_model.h"

namespace tessera {

class Bpe final : public TokenModel {
 public:
  // Throws UserError: no vocabulary or merges, ids out of range or twice, merges of tokens there
  // are not, dropout and other features that byte-level models do not have.
  explicit Bpe(const JsonNode& node);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const override;
  std::optional<int32_t> id_of(std::string_view token) const override;
  const std::vector<std::string>& tokens() const override { return tokens_; }
  int64_t num_tokens() const override { return static_cast<int64_t>(ids_.size()); }

 private:
  class Work;
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  void read_vocabulary(const JsonNode& vocabulary);
  void read_merges(const JsonNode& merges);
  void add_merge(const JsonNode& merges, size_t rank, std::string_view left,
                 std::string_view right);
  void merge(std::string_view piece, Work& work) const;
  void merge_short(std::vector<int32_t>& ids, Work& work) const;
  void merge_long(std::vector<int32_t>& ids, Work& work) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> ids_;
  std::array<int32_t, 256> byte_ids_;  // -1: not in the vocabulary; such bytes vanish
  MergeTable merges_;
  bool ignore_merges_;  // a piece that is a token is that token, merges or not
};

}  // namespace tessera
