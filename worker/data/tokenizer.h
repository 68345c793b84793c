// A Hugging Face tokenizer.json: byte-level BPE. Ids, offsets and decoded text are those of
// `tokenizers`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/added_tokens.h"
#include "worker/data/aligned_text.h"
#include "worker/data/normalizer.h"
#include "worker/data/post_processor.h"
#include "worker/data/pre_tokenizer.h"
#include "worker/data/token_model.h"

namespace tessera {

// What errors about tokenizers are charged to.
inline constexpr const char* kTokenizerField = "model.tokenizer";

// Immutable: one serves all threads, each with an Encoder of its own.
class Tokenizer {
 public:
  // Reads tokenizer.json of a Hugging Face directory, and the names of special tokens out of
  // tokenizer_config.json, special_tokens_map.json and config.json, as far as they are there.
  // Throws UserError(kTokenizerField) naming the file and what is wrong or not supported.
  explicit Tokenizer(const std::filesystem::path& directory);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // As written in tokenizer.json, added tokens included.
  std::optional<int32_t> id_of(std::string_view token) const;
  // "" for an id that is no token's.
  std::string token_of(int32_t id) const;
  // One more than the largest id.
  int64_t vocab_size() const { return static_cast<int64_t>(bytes_.size()); }
  // Empty: the files name none.
  const std::string& eos_token() const { return eos_token_; }
  const std::string& pad_token() const { return pad_token_; }

  // Bytes that are not UTF-8 become U+FFFD. Ids that are no token's are left out.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;

 private:
  friend class Encoder;

  void read_added_tokens(const JsonNode& list);
  void read_special_tokens(const std::filesystem::path& directory);
  void add_token(AddedToken token);
  void build_matchers();
  void build_bytes();
  std::string normalized(std::string_view text) const;

  std::unique_ptr<const Normalizer> normalizer_;  // null: none
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const TokenModel> model_;
  PostProcessor post_processor_;
  bool joins_with_spaces_ = false;  // there is no decoder
  std::vector<std::unique_ptr<AddedToken>> added_;
  std::map<std::string, int32_t, std::less<>> added_ids_;
  std::vector<const AddedToken*> added_by_id_;  // null where an id is the model's
  AddedTokenMatcher raw_matcher_;               // looks at the text as it is
  AddedTokenMatcher normalized_matcher_;        // at the normalised text
  std::vector<std::string> bytes_;              // what an id decodes to
  std::string eos_token_;
  std::string pad_token_;
};

// Encodes for one thread: it holds a cache and buffers.
class Encoder {
 public:
  // The tokenizer outlives this.
  explicit Encoder(const Tokenizer& tokenizer);

  // Appends the ids of a text; with `add_special_tokens` also those the post-processor puts around
  // it. Throws std::invalid_argument when the text is not UTF-8 or above 4 GiB, std::runtime_error
  // when the pre-tokenizer's pattern takes too long on it.
  void encode(std::string_view text, std::vector<int32_t>& ids, bool add_special_tokens = true);
  // The same, with the characters each token stands for.
  void encode(std::string_view text, std::vector<int32_t>& ids, std::vector<Span>& offsets,
              bool add_special_tokens = true);

 private:
  // What offsets are made of.
  struct Tracked {
    Span origin;  // bytes of the text
    uint32_t leading_spaces = 0;
    uint32_t trailing_spaces = 0;
  };

  void encode_all(std::string_view text, std::vector<int32_t>& ids, bool add_special_tokens);
  void encode_part(std::string_view text, uint32_t begin, std::vector<int32_t>& ids);
  void encode_pieces(std::vector<int32_t>& ids);
  void append_added(const AddedToken& token, std::string_view text, Span origin,
                    std::vector<int32_t>& ids);
  Span trimmed(Span offset, const Tracked& tracked, bool first) const;

  const Tokenizer& tokenizer_;
  Regex::Matcher matcher_;
  std::unique_ptr<TokenModel::Scratch> scratch_;
  std::vector<Tracked>* tracked_ = nullptr;  // a token each; null: offsets are not asked for
  AlignedText normalized_;
  Pieces pieces_;
  std::vector<AddedTokenPart> parts_;
  std::vector<AddedTokenPart> inner_parts_;
};

}  // namespace tessera
