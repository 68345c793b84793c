#include "worker/data/bpe.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <stdexcept>

#include "worker/data/byte_level.h"
#include "worker/data/metaspace.h"
#include "worker/data/utf8.h"
#include "worker/data/word_cache.h"

namespace tessera {
namespace {

// Up to here a scan for the best pair beats keeping them in order.
constexpr size_t kShortWord = 48;

}  // namespace

class Bpe::Work final : public Scratch {
 public:
  struct Candidate {
    uint32_t rank;
    int32_t at;  // of the left token
    int32_t id;  // of the merged token
    int32_t left;
    int32_t right;

    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  void add(int32_t id, size_t length) {
    ids.push_back(id);
    lengths.push_back(static_cast<uint32_t>(length));
  }
  void clear() {
    ids.clear();
    lengths.clear();
  }

  WordCache cache;
  std::vector<int32_t> ids;
  std::vector<uint32_t> lengths;  // in bytes of the word, a token each
  std::vector<Merge> merges;      // of each token with the next
  std::vector<int32_t> next;
  std::vector<int32_t> previous;
  std::vector<Candidate> heap;
};

Bpe::Bpe(BpeParts parts, bool bytes) : parts_(std::move(parts)) {
  merges_.reserve(parts_.merges.size());
  for (size_t rank = 0; rank < parts_.merges.size(); ++rank) {
    const auto& pair = parts_.merges[rank];
    merges_.add(pair.left, pair.right, {static_cast<uint32_t>(rank), pair.merged});
  }
  if (!parts_.unk_token.empty()) {
    unk_id_ = parts_.vocabulary.id_of(parts_.unk_token).value_or(-1);
  }
  if (bytes) prepare_bytes();
  if (!reads_bytes_) prepare_characters();
  parts_.merges = {};
}

void Bpe::prepare_bytes() {
  if (!parts_.continuing_subword_prefix.empty() || !parts_.end_of_word_suffix.empty()) return;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto id = parts_.vocabulary.id_of(token_of_bytes({&c, 1}));
    if (!id) return;
    byte_ids_[byte] = *id;
  }
  reads_bytes_ = true;
  for (const std::string& token : parts_.vocabulary.tokens()) {
    const auto bytes = bytes_of_token(token);
    num_bytes_.push_back(static_cast<uint32_t>(bytes ? bytes->size() : 0));
  }
}

void Bpe::prepare_characters() {
  const auto& tokens = parts_.vocabulary.tokens();
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    if (token.empty()) continue;
    const auto [character, num_bytes] = first_code_point(token);
    if (static_cast<size_t>(num_bytes) != token.size()) continue;
    if (character >= character_ids_.size()) character_ids_.resize(character + 1, -1);
    character_ids_[character] = *parts_.vocabulary.id_of(token);
  }
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    byte_ids_[byte] = parts_.vocabulary.id_of(name).value_or(-1);
  }
  prepare_cuts();
}

// A model that reads whole sentences merges within words alone, mostly: its tokens have the
// metaspace at their front. Cutting there lets words be cached. It changes nothing where no merge
// gives a token with the metaspace behind another character.
void Bpe::prepare_cuts() {
  if (!parts_.continuing_subword_prefix.empty() || !parts_.end_of_word_suffix.empty()) return;
  if (!parts_.vocabulary.id_of(kMetaspace)) return;
  for (const auto& pair : parts_.merges) {
    const std::string_view token = parts_.vocabulary.tokens()[pair.merged];
    for (size_t at = token.find(kMetaspace, 1); at != std::string_view::npos;
         at = token.find(kMetaspace, at + 1)) {
      const char32_t before = last_code_point(token.substr(0, at)).value;
      // The end of a byte's name may stand for any character.
      if (before == U'>' && parts_.byte_fallback) return;
      crossing_.push_back(before);
    }
  }
  std::sort(crossing_.begin(), crossing_.end());
  crossing_.erase(std::unique(crossing_.begin(), crossing_.end()), crossing_.end());
  cuts_words_ = true;
}

// Where the stretch ends that begins at `begin` and can be merged alone.
size_t Bpe::word_end(std::string_view piece, size_t begin) const {
  if (!cuts_words_) return piece.size();
  for (size_t at = begin + 1; (at = piece.find(kMetaspace, at)) != std::string_view::npos; ++at) {
    const char32_t before = last_code_point(piece.substr(0, at)).value;
    if (!std::binary_search(crossing_.begin(), crossing_.end(), before)) return at;
  }
  return piece.size();
}

std::unique_ptr<TokenModel::Scratch> Bpe::make_scratch() const { return std::make_unique<Work>(); }

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
                 std::vector<Span>* spans) const {
  auto& work = static_cast<Work&>(scratch);
  uint32_t done = 0;
  const auto put = [&](int32_t id, size_t length) {
    ids.push_back(id);
    if (spans == nullptr) return;
    spans->push_back({done, done + static_cast<uint32_t>(length)});
    done = spans->back().end;
  };
  if (parts_.ignore_merges && !reads_bytes_) {
    if (const auto whole = parts_.vocabulary.id_of(piece)) return put(*whole, piece.size());
  }
  for (size_t begin = 0; begin < piece.size();) {
    const size_t end = word_end(piece, begin);
    const std::string_view word = piece.substr(begin, end - begin);
    begin = end;
    // The cache does not know how long the tokens are, but where they are bytes.
    const bool cached = reads_bytes_ || spans == nullptr;
    if (const auto hit = cached ? work.cache.find(word) : WordCache::Hit{}; hit.ids != nullptr) {
      for (int i = 0; i < hit.count; ++i) {
        put(hit.ids[i], reads_bytes_ ? num_bytes_[hit.ids[i]] : 0);
      }
      continue;
    }
    work.clear();
    reads_bytes_ ? split_bytes(word, work) : split_characters(word, work);
    merge(work);
    if (cached) work.cache.insert(word, work.ids);
    for (size_t i = 0; i < work.ids.size(); ++i) put(work.ids[i], work.lengths[i]);
  }
}

void Bpe::split_bytes(std::string_view word, Work& work) const {
  if (parts_.ignore_merges) {
    if (const auto whole = parts_.vocabulary.id_of(token_of_bytes(word))) {
      return work.add(*whole, word.size());
    }
  }
  for (const char byte : word) work.add(byte_ids_[static_cast<uint8_t>(byte)], 1);
}

int32_t Bpe::id_of_character(std::string_view character, bool first, bool last) const {
  const bool prefix = !first && !parts_.continuing_subword_prefix.empty();
  const bool suffix = last && !parts_.end_of_word_suffix.empty();
  if (prefix || suffix) {
    std::string token = prefix ? parts_.continuing_subword_prefix : "";
    token.append(character);
    if (suffix) token.append(parts_.end_of_word_suffix);
    return parts_.vocabulary.id_of(token).value_or(-1);
  }
  const char32_t code_point = first_code_point(character).value;
  return code_point < character_ids_.size() ? character_ids_[code_point] : -1;
}

bool Bpe::fall_back(std::string_view character, Work& work) const {
  if (!parts_.byte_fallback) return false;
  const auto id = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char c) { return id(c) < 0; })) {
    return false;
  }
  for (const char byte : character) work.add(id(byte), 1);
  return true;
}

// An unknown token waits for what follows, with which it may be fused. Bytes that a later character
// falls back to go before it, and so they do in `tokenizers`.
void Bpe::split_characters(std::string_view word, Work& work) const {
  size_t unknown = 0;  // bytes of the token that waits
  const auto flush = [&] {
    if (unknown > 0) work.add(unk_id_, unknown);
    unknown = 0;
  };
  for (size_t at = 0; at < word.size();) {
    const auto num_bytes = static_cast<size_t>(first_code_point(word.substr(at)).num_bytes);
    const std::string_view character = word.substr(at, num_bytes);
    const bool last = at + num_bytes == word.size();
    const int32_t id = id_of_character(character, at == 0, last);
    at += num_bytes;
    if (id >= 0) {
      flush();
      work.add(id, num_bytes);
    } else if (!fall_back(character, work) && !parts_.unk_token.empty()) {
      if (unk_id_ < 0) {
        throw std::invalid_argument("the text has \"" + std::string(character) +
                                    "\", which is no token, and neither is \"" + parts_.unk_token +
                                    "\"");
      }
      if (!parts_.fuse_unk) flush();
      unknown += num_bytes;
    }
  }
  flush();
}

void Bpe::merge(Work& work) const {
  if (work.ids.size() < 2) return;
  work.ids.size() <= kShortWord ? merge_short(work) : merge_long(work);
}

void Bpe::merge_short(Work& work) const {
  auto& ids = work.ids;
  auto& lengths = work.lengths;
  auto& merges = work.merges;
  merges.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) merges.push_back(merges_.find(ids[i], ids[i + 1]));
  while (!merges.empty()) {
    const auto best =
        std::min_element(merges.begin(), merges.end(),
                         [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->rank == Merge::kNoRank) return;
    const auto at = best - merges.begin();
    ids[at] = best->id;
    ids.erase(ids.begin() + at + 1);
    lengths[at] += lengths[at + 1];
    lengths.erase(lengths.begin() + at + 1);
    merges.erase(best);
    if (at > 0) merges[at - 1] = merges_.find(ids[at - 1], ids[at]);
    if (at < static_cast<ptrdiff_t>(merges.size())) merges[at] = merges_.find(ids[at], ids[at + 1]);
  }
}

// A linked list of tokens and a heap of the pairs that merge, some of them out of date.
void Bpe::merge_long(Work& work) const {
  auto& ids = work.ids;
  const auto size = static_cast<int32_t>(ids.size());
  work.next.resize(size);
  work.previous.resize(size);
  work.heap.clear();
  const auto consider = [&](int32_t at) {
    const int32_t after = work.next[at];
    if (after == size) return;
    const Merge merge = merges_.find(ids[at], ids[after]);
    if (merge.rank == Merge::kNoRank) return;
    work.heap.push_back({merge.rank, at, merge.id, ids[at], ids[after]});
    std::push_heap(work.heap.begin(), work.heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < size; ++i) {
    work.next[i] = i + 1;
    work.previous[i] = i - 1;
  }
  for (int32_t i = 0; i < size; ++i) consider(i);
  constexpr int32_t kGone = -1;
  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end(), std::greater<>());
    const auto best = work.heap.back();
    work.heap.pop_back();
    const int32_t after = work.next[best.at];
    if (ids[best.at] != best.left || after == size || ids[after] != best.right) continue;
    ids[best.at] = best.id;
    ids[after] = kGone;
    work.lengths[best.at] += work.lengths[after];
    work.next[best.at] = work.next[after];
    if (work.next[after] < size) work.previous[work.next[after]] = best.at;
    consider(best.at);
    if (work.previous[best.at] >= 0) consider(work.previous[best.at]);
  }
  size_t kept = 0;
  for (int32_t i = 0; i < size; i = work.next[i], ++kept) {
    ids[kept] = ids[i];
    work.lengths[kept] = work.lengths[i];
  }
  ids.resize(kept);
  work.lengths.resize(kept);
}

}  // namespace tessera
