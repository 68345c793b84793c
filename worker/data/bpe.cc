#include "worker/data/bpe.h"

#include <algorithm>
#include <functional>

#include "worker/data/byte_level.h"
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

  WordCache cache;
  std::vector<int32_t> ids;
  std::vector<Merge> merges;  // of each token with the next
  std::vector<int32_t> next;
  std::vector<int32_t> previous;
  std::vector<Candidate> heap;
};

Bpe::Bpe(const JsonNode& node) : ignore_merges_(node.boolean("ignore_merges", false)) {
  for (const auto* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto value = node.find(key);
    if (value && !(value->is_string() && value->string().empty())) {
      value->fail("is set, which is not supported");
    }
  }
  if (node.boolean("byte_fallback", false)) {
    node.at("byte_fallback").fail("is set, which is not supported");
  }
  read_vocabulary(node.at("vocab"));
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[byte] = id_of(token_of_bytes({&c, 1})).value_or(-1);
  }
  const bool complete = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  if (const auto unknown = node.find("unk_token"); unknown && !complete) {
    unknown->fail("is set and the vocabulary lacks some bytes, which is not supported");
  }
  read_merges(node.at("merges"));
}

void Bpe::read_vocabulary(const JsonNode& vocabulary) {
  for (const auto& [token, value] : vocabulary.object()) {
    const auto refuse = [&](const std::string& problem) {
      vocabulary.fail("has \"" + std::string(token.substr(0, 64)) + "\" " + problem);
    };
    int64_t id;
    if (value.get(id)) refuse("with an id that is not a whole number");
    if (id < 0 || id >= kMaxTokens) refuse("with the id " + std::to_string(id) + ", out of range");
    if (token.size() > kMaxTokenBytes) refuse("..., a token too long");
    if (!ids_.emplace(token, static_cast<int32_t>(id)).second) refuse("twice");
    if (static_cast<int64_t>(tokens_.size()) <= id) tokens_.resize(id + 1);
    if (!tokens_[id].empty()) refuse("with the id " + std::to_string(id) + " of another token");
    tokens_[id] = token;
  }
  if (ids_.empty()) vocabulary.fail("is empty");
}

void Bpe::read_merges(const JsonNode& merges) {
  const auto list = merges.array();
  size_t count = 0;
  for ([[maybe_unused]] const auto element : list) ++count;
  if (count > static_cast<size_t>(kMaxTokens)) merges.fail("are too many");
  merges_.reserve(count);
  size_t rank = 0;
  for (const auto element : list) {
    std::string_view text;
    simdjson::dom::array pair;
    if (!element.get(text)) {
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        merges.fail("has \"" + std::string(text.substr(0, 64)) + "\", which is not a pair");
      }
      add_merge(merges, rank, text.substr(0, space), text.substr(space + 1));
    } else {
      std::string_view left, right;
      if (element.get(pair) || pair.size() != 2 || pair.at(0).get(left) || pair.at(1).get(right)) {
        merges.fail("has at " + std::to_string(rank) + " something that is not a pair of tokens");
      }
      add_merge(merges, rank, left, right);
    }
    ++rank;
  }
}

void Bpe::add_merge(const JsonNode& merges, size_t rank, std::string_view left,
                    std::string_view right) {
  const auto id = [&](std::string_view token) {
    const auto found = id_of(token);
    if (!found) {
      merges.fail("has at " + std::to_string(rank) + " the token \"" +
                  std::string(token.substr(0, 64)) + "\", which is not in the vocabulary");
    }
    return *found;
  };
  const int32_t left_id = id(left);
  const int32_t right_id = id(right);
  const int32_t merged_id = id(std::string(left).append(right));
  merges_.add(left_id, right_id, {static_cast<uint32_t>(rank), merged_id});
}

std::optional<int32_t> Bpe::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::unique_ptr<TokenModel::Scratch> Bpe::make_scratch() const { return std::make_unique<Work>(); }

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  auto& work = static_cast<Work&>(scratch);
  if (const auto hit = work.cache.find(piece); hit.ids != nullptr) {
    ids.insert(ids.end(), hit.ids, hit.ids + hit.count);
    return;
  }
  merge(piece, work);
  work.cache.insert(piece, work.ids);
  ids.insert(ids.end(), work.ids.begin(), work.ids.end());
}

void Bpe::merge(std::string_view piece, Work& work) const {
  work.ids.clear();
  if (ignore_merges_) {
    if (const auto whole = id_of(token_of_bytes(piece))) {
      work.ids.push_back(*whole);
      return;
    }
  }
  for (const char byte : piece) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id >= 0) work.ids.push_back(id);
  }
  if (work.ids.size() < 2) return;
  work.ids.size() <= kShortWord ? merge_short(work.ids, work) : merge_long(work.ids, work);
}

void Bpe::merge_short(std::vector<int32_t>& ids, Work& work) const {
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
    merges.erase(best);
    if (at > 0) merges[at - 1] = merges_.find(ids[at - 1], ids[at]);
    if (at < static_cast<ptrdiff_t>(merges.size())) merges[at] = merges_.find(ids[at], ids[at + 1]);
  }
}

// A linked list of tokens and a heap of the pairs that merge, some of them out of date.
void Bpe::merge_long(std::vector<int32_t>& ids, Work& work) const {
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
    work.next[best.at] = work.next[after];
    if (work.next[after] < size) work.previous[work.next[after]] = best.at;
    consider(best.at);
    if (work.previous[best.at] >= 0) consider(work.previous[best.at]);
  }
  ids.erase(std::remove(ids.begin(), ids.end(), kGone), ids.end());
}

}  // namespace tessera
