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

struct AlignedText {
  std::string text;
  // For each byte of `text` the bytes of the original it stands for. Kept only where `tracked`.
  std::vector<Span> origins;
  bool tracked = false;

  // Takes a part of the original, which begins at its byte `begin`.
  void assign(std::string_view original, uint32_t begin) {
    text.assign(original);
    origins.clear();
    if (tracked) append_identity(begin);
  }
  void assign(const AlignedText& other, Span span) {
    text.assign(other.text, span.begin, span.size());
    tracked = other.tracked;
    origins.clear();
    if (!tracked) return;
    const auto from = other.origins.begin();
    origins.assign(from + span.begin, from + span.end);
  }
  // What a part of the text stands for. Requires that it is tracked, and the part not empty.
  Span origin(Span span) const { return {origins[span.begin].begin, origins[span.end - 1].end}; }

 private:
  // Each byte of a character stands for the whole character.
  void append_identity(uint32_t begin) {
    origins.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
      size_t next = i + 1;
      while (next < text.size() && (static_cast<uint8_t>(text[next]) & 0xC0) == 0x80) ++next;
      origins.insert(origins.end(), next - i,
                     {begin + static_cast<uint32_t>(i), begin + static_cast<uint32_t>(next)});
      i = next;
    }
  }
};

}  // namespace tessera
