// A text on its way through normalizers and pre-tokenizers, which remembers where it came from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Half-open.
struct Span {
  uint32_t begin = 0;
  uint32_t end = 0;

  uint32_t size() const { return end - begin; }
  bool operator==(const Span&) const = default;
};

inline std::string_view slice(std::string_view text, Span span) {
  return text.substr(span.begin, span.size());
}

// A character of a text made out of another one, walking along that other text. `change` is how
// many characters more than one of the source it takes the place of, negated: 0 replaces one, 1 is
// inserted, -1 replaces two.
struct Change {
  char32_t character;
  int32_t change;
};

struct AlignedText {
  std::string text;
  // For each byte of `text` the bytes of the original it stands for. Kept only where `tracked`.
  std::vector<Span> origins;
  bool tracked = false;
  uint32_t base = 0;  // where in the original the part begins that this was made of

  // Takes a part of the original, which begins at its byte `begin`.
  void assign(std::string_view original, uint32_t begin);
  void assign(const AlignedText& other, Span span);
  // The text becomes the characters of `changes`, of which the first takes the place of what
  // follows `skipped` characters.
  void transform(const std::vector<Change>& changes, size_t skipped = 0);
  // What a part of the text stands for. Requires that it is tracked, and the part not empty.
  Span origin(Span span) const { return {origins[span.begin].begin, origins[span.end - 1].end}; }
};

// Builds an AlignedText out of pieces of another, with characters of its own between them.
class AlignedBuilder {
 public:
  explicit AlignedBuilder(const AlignedText& source);

  size_t size() const { return out_.text.size(); }
  void copy(Span span);
  // `text` stands for what the byte `at` of the source stands for.
  void insert(std::string_view text, size_t at);
  // `text` stands for nothing, at the front.
  void insert_at_front(std::string_view text);
  AlignedText take() { return std::move(out_); }

 private:
  const AlignedText& source_;
  AlignedText out_;
};

}  // namespace tessera
