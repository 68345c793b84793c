#include "worker/data/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "worker/data/character_classes.h"
#include "worker/data/utf8.h"

namespace tessera {
namespace {

constexpr char32_t kNumCodePoints = 0x110000;
constexpr int kMaxDecomposition = 18;
constexpr char32_t kHangulBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161,
                   kTailBase = 0x11A7;
constexpr char32_t kNumLeads = 19, kNumVowels = 21, kNumTails = 28;

// Canonical; 0: none.
int combining_class(char32_t code_point) {
  if (is_newer_than_unicode_9(code_point)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point))->combining_class;
}

// Of one code point; the number of parts.
int decompose(char32_t code_point, bool compatible,
              std::array<utf8proc_int32_t, kMaxDecomposition>& parts) {
  if (is_newer_than_unicode_9(code_point)) {
    parts[0] = static_cast<utf8proc_int32_t>(code_point);
    return 1;
  }
  const int options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  return static_cast<int>(
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts.data(),
                              kMaxDecomposition, static_cast<utf8proc_option_t>(options), nullptr));
}

// The composite of two code points, or 0.
char32_t compose(char32_t first, char32_t second) {
  if (first >= kLeadBase && first < kLeadBase + kNumLeads && second >= kVowelBase &&
      second < kVowelBase + kNumVowels) {
    return kHangulBase + ((first - kLeadBase) * kNumVowels + second - kVowelBase) * kNumTails;
  }
  if (first >= kHangulBase && first < kHangulBase + kNumLeads * kNumVowels * kNumTails &&
      (first - kHangulBase) % kNumTails == 0 && second > kTailBase &&
      second < kTailBase + kNumTails) {
    return first + second - kTailBase;
  }
  utf8proc_int32_t pair[2] = {static_cast<utf8proc_int32_t>(first),
                              static_cast<utf8proc_int32_t>(second)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  if (utf8proc_normalize_utf32(pair, 2, options) != 1) return 0;
  const auto composite = static_cast<char32_t>(pair[0]);
  return is_newer_than_unicode_9(composite) ? 0 : composite;
}

template <typename Part>
void compose_in_place(std::vector<Part>& parts) {
  size_t size = 0;
  constexpr size_t kNone = SIZE_MAX;
  size_t starter = kNone;
  for (const Part& part : parts) {
    if (starter != kNone) {
      const bool adjacent = starter + 1 == size;
      // Blocked, by a starter or a mark of the same class or a higher one in between.
      const bool blocked = !adjacent && parts[size - 1].combining_class >= part.combining_class;
      const char32_t composite = blocked ? 0 : compose(parts[starter].code_point, part.code_point);
      if (composite != 0) {
        parts[starter].code_point = composite;
        parts[starter].change += part.change - 1;
        continue;
      }
    }
    if (part.combining_class == 0) starter = size;
    parts[size++] = part;
  }
  parts.resize(size);
}

// Appends the parts; `origins` are those of the source, from byte `begin` on.
template <typename Part>
void append(const std::vector<Part>& parts, std::string_view source,
            const std::vector<Span>& origins, size_t begin, AlignedText& out) {
  size_t offset = begin;
  const auto take = [&] {
    if (offset < source.size()) offset += first_code_point(source.substr(offset)).num_bytes;
  };
  for (const Part& part : parts) {
    const size_t length = out.text.size();
    append_utf8(part.code_point, out.text);
    if (!out.tracked) continue;
    Span origin{out.base, out.base};
    if (part.change <= 0 && offset < origins.size()) {
      origin = origins[offset];
    } else if (offset > 0) {
      origin = origins[offset - 1];
    }
    out.origins.insert(out.origins.end(), out.text.size() - length, origin);
    for (int i = part.change; i <= 0; ++i) take();
  }
}

}  // namespace

// A character of the decomposed text: see Change.
struct UnicodeForm::Part {
  char32_t code_point;
  int change;
  int combining_class;
};

UnicodeForm::UnicodeForm(bool compatible, bool composed)
    : compatible_(compatible), composed_(composed), inert_(kNumCodePoints, true) {
  std::array<utf8proc_int32_t, kMaxDecomposition> parts, canonical;
  for (char32_t c = 0x80; c < kNumCodePoints; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (combining_class(c) != 0) inert_[c] = false;
    const bool hangul = c >= kHangulBase && c < kHangulBase + kNumLeads * kNumVowels * kNumTails;
    if (hangul) {
      inert_[c] = composed_;
      continue;
    }
    // What ends a decomposition may be drawn into a composite by what comes before.
    const int num_canonical = decompose(c, false, canonical);
    for (int i = 1; composed_ && i < num_canonical; ++i) inert_[canonical[i]] = false;
    const int count = decompose(c, compatible_, parts);
    if (count == 1 && static_cast<char32_t>(parts[0]) == c) continue;
    // Below U+0300 all canonical decompositions compose to what they came from.
    const bool is_canonical = count == num_canonical &&
                              std::equal(parts.begin(), parts.begin() + count, canonical.begin());
    if (!composed_ || c >= 0x300 || !is_canonical) inert_[c] = false;
  }
  for (char32_t i = 0; composed_ && i < kNumVowels; ++i) inert_[kVowelBase + i] = false;
  for (char32_t i = 1; composed_ && i < kNumTails; ++i) inert_[kTailBase + i] = false;
  const auto first = std::find(inert_.begin(), inert_.end(), false) - inert_.begin();
  first_lead_ = first < 0x800 ? 0xC0 | first >> 6 : 0xE0;
}

std::vector<UnicodeForm::Part> UnicodeForm::decompose_and_order(std::string_view text) const {
  std::vector<Part> parts;
  std::array<utf8proc_int32_t, kMaxDecomposition> buffer;
  while (!text.empty()) {
    const auto [code_point, num_bytes] = first_code_point(text);
    text.remove_prefix(num_bytes);
    const int count = decompose(code_point, compatible_, buffer);
    for (int i = 0; i < count; ++i) {
      const auto part = static_cast<char32_t>(buffer[i]);
      parts.push_back({part, i > 0, combining_class(part)});
    }
  }
  for (auto begin = parts.begin(); begin != parts.end();) {
    if (begin->combining_class == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, parts.end(),
                                  [](const Part& part) { return part.combining_class == 0; });
    std::stable_sort(begin, end, [](const Part& a, const Part& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
  return parts;
}

bool UnicodeForm::inert(char32_t code_point) const { return inert_[code_point]; }

// Where the text from an inert code point on, which what follows may change, begins; the size if
// nowhere.
size_t UnicodeForm::first_change(std::string_view text) const {
  size_t last_inert = 0;
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < first_lead_) {
      last_inert = i;
      i += static_cast<uint8_t>(text[i]) < 0x80 ? 1 : 2;
      continue;
    }
    const auto [code_point, num_bytes] = first_code_point(text.substr(i));
    if (!inert(code_point)) return last_inert;
    last_inert = i;
    i += num_bytes;
  }
  return text.size();
}

void UnicodeForm::apply(AlignedText& text) const {
  size_t begin = first_change(text.text);
  if (begin == text.text.size()) return;
  const std::string source = std::move(text.text);
  const std::vector<Span> origins = std::move(text.origins);
  text.text.clear();
  text.origins.clear();
  const std::string_view view = source;
  for (size_t done = 0; done < source.size();) {
    begin = done + first_change(view.substr(done));
    text.text.append(view, done, begin - done);
    if (text.tracked) {
      text.origins.insert(text.origins.end(), origins.begin() + done, origins.begin() + begin);
    }
    // The stretch to normalise: what begins it, and all that is not inert.
    size_t end = begin;
    while (end < source.size()) {
      const auto [code_point, num_bytes] = first_code_point(view.substr(end));
      if (end > begin && inert(code_point)) break;
      end += num_bytes;
    }
    if (end > begin) {
      auto parts = decompose_and_order(view.substr(begin, end - begin));
      if (composed_) compose_in_place(parts);
      append(parts, view, origins, begin, text);
    }
    done = end;
  }
}

}  // namespace tessera
