#include "worker/data/aligned_text.h"

#include <algorithm>

#include "worker/data/utf8.h"

namespace tessera {

void AlignedText::assign(std::string_view original, uint32_t begin) {
  text.assign(original);
  origins.clear();
  base = begin;
  if (!tracked) return;
  // Each byte of a character stands for the whole character.
  origins.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    size_t next = i + 1;
    while (next < text.size() && (static_cast<uint8_t>(text[next]) & 0xC0) == 0x80) ++next;
    origins.insert(origins.end(), next - i,
                   {begin + static_cast<uint32_t>(i), begin + static_cast<uint32_t>(next)});
    i = next;
  }
}

void AlignedText::assign(const AlignedText& other, Span span) {
  text.assign(other.text, span.begin, span.size());
  tracked = other.tracked;
  origins.clear();
  base = other.base + span.begin;
  if (!tracked) return;
  const auto from = other.origins.begin();
  origins.assign(from + span.begin, from + span.end);
  if (!origins.empty()) base = origins.front().begin;
}

void AlignedText::transform(const std::vector<Change>& changes, size_t skipped) {
  std::string made;
  std::vector<Span> made_origins;
  made.reserve(text.size());
  size_t offset = 0;
  const auto take = [&] {
    if (offset < text.size()) {
      offset += first_code_point(std::string_view(text).substr(offset)).num_bytes;
    }
  };
  for (size_t i = 0; i < skipped; ++i) take();
  for (const Change& change : changes) {
    const size_t length = made.size();
    append_utf8(change.character, made);
    if (!tracked) continue;
    Span origin{base, base};
    if (change.change <= 0 && offset < origins.size()) {
      origin = origins[offset];
    } else if (offset > 0) {
      origin = origins[offset - 1];
    }
    made_origins.insert(made_origins.end(), made.size() - length, origin);
    for (int32_t c = change.change; c <= 0; ++c) take();
  }
  text = std::move(made);
  origins = std::move(made_origins);
}

AlignedBuilder::AlignedBuilder(const AlignedText& source) : source_(source) {
  out_.tracked = source.tracked;
  out_.base = source.base;
  out_.text.reserve(source.text.size() + source.text.size() / 4);
}

void AlignedBuilder::copy(Span span) {
  out_.text.append(source_.text, span.begin, span.size());
  if (!out_.tracked) return;
  const auto origins = source_.origins.begin();
  out_.origins.insert(out_.origins.end(), origins + span.begin, origins + span.end);
}

void AlignedBuilder::insert(std::string_view text, size_t at) {
  out_.text.append(text);
  if (out_.tracked) {
    out_.origins.insert(out_.origins.end(), text.size(), source_.origins[at]);
  }
}

void AlignedBuilder::insert_at_front(std::string_view text) {
  out_.text.append(text);
  if (out_.tracked) {
    out_.origins.insert(out_.origins.end(), text.size(), {source_.base, source_.base});
  }
}

}  // namespace tessera
