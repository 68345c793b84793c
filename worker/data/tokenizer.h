// The tokenizer of a Hugging Face directory. Ids, offsets and decoded text are those of the
// tokenizer that AutoTokenizer of transformers makes of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/data/added_tokens.h"
#include "worker/data/aligned_text.h"
#include "worker/data/decoder.h"
#include "worker/data/normalizer.h"
#include "worker/data/post_processor.h"
#include "worker/data/pre_tokenizer.h"
#include "worker/data/token_model.h"
#include "worker/data/tokenizer_class.h"
#include "worker/data/tokenizer_config.h"

namespace tessera {

// What errors about tokenizers are charged to.
inline constexpr const char* kTokenizerField = "model.tokenizer";

// Immutable: one serves all threads, each with an Encoder of its own.
// Whether a directory holds a tokenizer's files.
bool has_tokenizer(const std::filesystem::path& directory);

class Tokenizer {
 public:
  // Reads tokenizer.json of a Hugging Face directory, or else its SentencePiece model, and what
  // tokenizer_config.json, special_tokens_map.json, added_tokens.json and config.json say, as far
  // as they are there. Throws UserError(kTokenizerField) naming the file and what is wrong or not
  // supported.
  explicit Tokenizer(const std::filesystem::path& directory);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // As the files write it, added tokens included.
  std::optional<int32_t> id_of(std::string_view token) const;
  // "" for an id that is no token's.
  std::string token_of(int32_t id) const;
  // One more than the largest id.
  int64_t vocab_size() const { return static_cast<int64_t>(bytes_.size()); }
  // Empty: the files name none.
  const std::string& eos_token() const { return eos_token_; }
  const std::string& pad_token() const { return pad_token_; }
  // Whether tokens are bytes, as those of GPT-2 and its heirs are.
  bool is_byte_level() const { return decodes_bytes_; }
  // What a token stands for: of byte-level ones its bytes, which need not be UTF-8. Requires an id
  // of a token.
  std::string_view bytes_of(int32_t id) const { return bytes_[static_cast<size_t>(id)]; }
  // {"bos_token", "<s>"} and so on, as far as there are such tokens.
  std::vector<std::pair<std::string, std::string>> named_tokens() const;

  // Bytes that are not UTF-8 become U+FFFD. Ids that are no token's are left out.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;

 private:
  friend class Encoder;

  void read_json(const std::filesystem::path& path, const TokenizerClass& rules);
  void read_sentencepiece(const std::filesystem::path& path, const TokenizerClass& rules);
  // Takes normalizer, pre-tokenizer and decoder of a tokenizer.json, and the model as `make_model`
  // makes it given whether it gets bytes.
  template <typename MakeModel>
  void take_parts(const JsonNode& parts, MakeModel make_model);
  void add_special_tokens();
  void readd_special_tokens();
  void add_tokens(std::vector<AddedToken> tokens);
  void set_around(const TokenizerClass& rules, bool from_json);
  void build_matchers();
  void build_bytes();
  std::string normalized(std::string_view text) const;

  TokenizerConfig config_;
  std::unique_ptr<const Normalizer> normalizer_;       // null: none
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;  // null: none
  std::unique_ptr<const TokenModel> model_;
  PostProcessor post_processor_;
  std::unique_ptr<const Decoder> decoder_;  // null: tokens are joined with spaces
  bool decodes_bytes_ = false;              // the decoder is ByteLevel, and bytes_ are bytes
  bool tracks_always_ = false;              // the pre-tokenizer needs to know where text came from
  std::vector<std::unique_ptr<AddedToken>> added_;
  std::map<std::string, int32_t, std::less<>> added_ids_;
  std::vector<const AddedToken*> added_by_id_;  // null where an id is the model's
  std::set<std::string, std::less<>> special_;  // contents
  AddedTokenMatcher raw_matcher_;               // looks at the text as it is
  AddedTokenMatcher normalized_matcher_;        // at the normalised text
  std::vector<std::string> bytes_;              // of an id: its token, or what that decodes to
  std::vector<bool> skipped_;                   // of an id: whether it can be left out of text
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
  static Tracked tracked_token(std::string_view text, Span origin);
  static Tracked tracked_bytes(std::string_view bytes, Span origin);
  Span trimmed(Span offset, const Tracked& tracked, bool first) const;

  const Tokenizer& tokenizer_;
  Regex::Matcher matcher_;
  std::unique_ptr<TokenModel::Scratch> scratch_;
  std::vector<Tracked>* tracked_ = nullptr;  // a token each; null: offsets are not asked for
  std::vector<Span> spans_;
  AlignedText normalized_;
  Pieces pieces_;
  std::vector<AddedTokenPart> parts_;
  std::vector<AddedTokenPart> inner_parts_;
};

}  // namespace tessera
