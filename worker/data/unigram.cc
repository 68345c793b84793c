#include "worker/data/unigram.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "worker/data/utf8.h"
#include "worker/data/word_cache.h"

namespace tessera {
namespace {

constexpr double kUnknownPenalty = 10;

}  // namespace

class Unigram::Work final : public Scratch {
 public:
  // The best way to write all before a place.
  struct Best {
    double score = 0;
    int32_t begin = -1;  // of its last token; -1: there is no way
    int32_t id = 0;      // of its last token
  };

  WordCache cache;
  std::vector<Best> best;
  std::vector<Span> tokens;
};

UnigramParts read_unigram(const JsonNode& options, const JsonNode& model) {
  UnigramParts parts;
  const JsonNode vocab = model.at("vocab");
  for (const auto element : vocab.array()) {
    simdjson::dom::array pair;
    std::string_view text;
    double score;
    const auto refuse = [&](const char* problem) {
      vocab.fail("has at " + std::to_string(parts.pieces.size()) + " " + problem);
    };
    if (parts.pieces.size() >= static_cast<size_t>(kMaxTokens)) vocab.fail("is too long");
    if (element.get(pair) || pair.size() != 2 || pair.at(0).get(text) || pair.at(1).get(score)) {
      refuse("something that is not a pair of a token and its score");
    }
    if (text.size() > kMaxTokenBytes) refuse("a token too long");
    parts.pieces.push_back({std::string(text), score});
  }
  if (parts.pieces.empty()) vocab.fail("is empty");
  if (const auto unk = options.find("unk_id")) {
    if (unk->integer() < 0 || unk->integer() >= static_cast<int64_t>(parts.pieces.size())) {
      unk->fail("is not the id of a token");
    }
    parts.unk_id = static_cast<int32_t>(unk->integer());
  }
  parts.byte_fallback = options.boolean("byte_fallback", false);
  return parts;
}

Unigram::Unigram(UnigramParts parts) : unk_id_(parts.unk_id), byte_fallback_(parts.byte_fallback) {
  double lowest = std::numeric_limits<double>::infinity();
  for (const auto& piece : parts.pieces) {
    const auto id = static_cast<int32_t>(scores_.size());
    vocabulary_.add(piece.text, id);
    if (!piece.text.empty()) trie_.add(piece.text, id);
    scores_.push_back(piece.score);
    lowest = std::min(lowest, piece.score);
  }
  unk_score_ = lowest - kUnknownPenalty;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    byte_ids_[byte] = vocabulary_.id_of(name).value_or(-1);
  }
}

std::unique_ptr<TokenModel::Scratch> Unigram::make_scratch() const {
  return std::make_unique<Work>();
}

void Unigram::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
                     std::vector<Span>* spans) const {
  auto& work = static_cast<Work&>(scratch);
  if (spans == nullptr) {
    if (const auto hit = work.cache.find(piece); hit.ids != nullptr) {
      ids.insert(ids.end(), hit.ids, hit.ids + hit.count);
      return;
    }
  }
  find_best(piece, work);
  const size_t first = ids.size();
  for (auto token = work.tokens.rbegin(); token != work.tokens.rend(); ++token) {
    put(piece, *token, ids, spans);
  }
  if (spans == nullptr) {
    work.cache.insert(piece, std::span<const int32_t>(ids).subspan(first));
  }
}

// Leaves the tokens' places in work.tokens, last to first; unknown ones beside each other are one.
void Unigram::find_best(std::string_view piece, Work& work) const {
  auto& best = work.best;
  best.assign(piece.size() + 1, {});
  const auto consider = [&](size_t begin, size_t end, double score, int32_t id) {
    if (best[end].begin >= 0 && !(score > best[end].score)) return;
    best[end] = {score, static_cast<int32_t>(begin), id};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const double so_far = best[begin].score;
    const size_t after = begin + first_code_point(piece.substr(begin)).num_bytes;
    bool has_single = false;
    int32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < piece.size();) {
      node = trie_.step(node, piece[end++]);
      if (node == ByteTrie::kNone) break;
      const int32_t id = trie_.value(node);
      if (id == ByteTrie::kNone) continue;
      consider(begin, end, scores_[id] + so_far, id);
      has_single |= end == after;
    }
    if (!has_single) {
      if (!unk_id_) {
        throw std::invalid_argument(
            "the text has a character that is no token, and the model names no unknown token");
      }
      consider(begin, after, unk_score_ + so_far, *unk_id_);
    }
    begin = after;
  }
  work.tokens.clear();
  bool unknown_before = false;
  for (size_t end = piece.size(); end > 0; end = best[end].begin) {
    const bool unknown = unk_id_ && best[end].id == *unk_id_;
    const auto begin = static_cast<uint32_t>(best[end].begin);
    if (unknown && unknown_before) {
      work.tokens.back().begin = begin;
    } else {
      work.tokens.push_back({begin, static_cast<uint32_t>(end)});
    }
    unknown_before = unknown;
  }
}

// What was put together is looked up as a text: it may be a token after all.
void Unigram::put(std::string_view piece, Span span, std::vector<int32_t>& ids,
                  std::vector<Span>* spans) const {
  const std::string_view text = slice(piece, span);
  const auto add = [&](int32_t id) {
    ids.push_back(id);
    if (spans != nullptr) spans->push_back(span);
  };
  const auto id_of_byte = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
  if (const auto id = vocabulary_.id_of(text)) {
    add(*id);
  } else if (byte_fallback_ &&
             std::all_of(text.begin(), text.end(), [&](char c) { return id_of_byte(c) >= 0; })) {
    for (const char c : text) add(id_of_byte(c));
  } else {
    add(unk_id_.value());
  }
}

}  // namespace tessera
