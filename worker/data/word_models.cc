#include "worker/data/word_models.h"

#include <algorithm>
#include <functional>

#include "worker/data/utf8.h"
#include "worker/data/word_cache.h"

namespace tessera {
namespace {

int32_t unk_id_of(const JsonNode& options, const Vocabulary& vocabulary) {
  const JsonNode unk = options.at("unk_token");
  const auto id = vocabulary.id_of(unk.string());
  if (!id) unk.fail("is \"" + std::string(unk.string()) + "\", which is not in the vocabulary");
  return *id;
}

bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

}  // namespace

WordLevel::WordLevel(const JsonNode& options, const JsonNode& model)
    : vocabulary_(model.at("vocab")), unk_id_(unk_id_of(options, vocabulary_)) {}

std::unique_ptr<TokenModel::Scratch> WordLevel::make_scratch() const {
  return std::make_unique<Scratch>();
}

void WordLevel::encode(std::string_view piece, Scratch&, std::vector<int32_t>& ids,
                       std::vector<Span>* spans) const {
  ids.push_back(vocabulary_.id_of(piece).value_or(unk_id_));
  if (spans != nullptr) spans->push_back({0, static_cast<uint32_t>(piece.size())});
}

class WordPiece::Work final : public Scratch {
 public:
  WordCache cache;
  std::vector<int32_t> ids;
  std::vector<Span> spans;
  std::string token;
};

WordPiece::WordPiece(const JsonNode& options, const JsonNode& model)
    : vocabulary_(model.at("vocab")),
      unk_id_(unk_id_of(options, vocabulary_)),
      continuing_subword_prefix_(options.at("continuing_subword_prefix").string()),
      max_characters_(options.at("max_input_chars_per_word").integer()) {
  for (const std::string& token : vocabulary_.tokens()) {
    max_token_bytes_ = std::max(max_token_bytes_, token.size());
  }
}

std::unique_ptr<TokenModel::Scratch> WordPiece::make_scratch() const {
  return std::make_unique<Work>();
}

void WordPiece::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
                       std::vector<Span>* spans) const {
  auto& work = static_cast<Work&>(scratch);
  if (spans == nullptr) {
    if (const auto hit = work.cache.find(piece); hit.ids != nullptr) {
      ids.insert(ids.end(), hit.ids, hit.ids + hit.count);
      return;
    }
  }
  if (!split(piece, work)) {
    work.ids.assign(1, unk_id_);
    work.spans.assign(1, {0, static_cast<uint32_t>(piece.size())});
  }
  work.cache.insert(piece, work.ids);
  ids.insert(ids.end(), work.ids.begin(), work.ids.end());
  if (spans != nullptr) spans->insert(spans->end(), work.spans.begin(), work.spans.end());
}

bool WordPiece::split(std::string_view word, Work& work) const {
  const auto num_characters = std::count_if(word.begin(), word.end(), std::not_fn(is_continuation));
  if (num_characters > max_characters_) return false;
  work.ids.clear();
  work.spans.clear();
  for (size_t begin = 0; begin < word.size();) {
    std::string_view rest = word.substr(begin, max_token_bytes_);
    // Whole characters only.
    while (begin + rest.size() < word.size() && is_continuation(word[begin + rest.size()])) {
      rest.remove_suffix(1);
    }
    std::optional<int32_t> id;
    for (; !rest.empty(); rest.remove_suffix(last_code_point(rest).num_bytes)) {
      work.token = begin > 0 ? continuing_subword_prefix_ : "";
      work.token += rest;
      id = vocabulary_.id_of(work.token);
      if (id) break;
    }
    if (!id) return false;
    work.ids.push_back(*id);
    work.spans.push_back(
        {static_cast<uint32_t>(begin), static_cast<uint32_t>(begin + rest.size())});
    begin += rest.size();
  }
  return true;
}

}  // namespace tessera
