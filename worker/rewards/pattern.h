// A regular expression of the user's (PCRE2), matched against text that a model wrote: whatever
// both are, a match ends soon.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace tessera {

// Immutable and thread safe. Characters are those of Unicode; bytes of the text that are no UTF-8
// match nothing.
class Pattern {
 public:
  enum class Extent { kAnyPart, kWhole };

  // Throws std::invalid_argument saying what is wrong with it, and where.
  explicit Pattern(const std::string& pattern, Extent extent = Extent::kAnyPart);

  int num_groups() const;

  // Empty: it took too many steps, so nobody knows.
  std::optional<bool> matches(std::string_view text) const;

  enum class Search { kFound, kNone, kGaveUp };
  struct LastGroup {
    Search search = Search::kNone;
    std::string_view text;
  };
  // The first group of the last of the matches that follow each other without overlap. None, where
  // there is no match, or the group has no part in it. Requires: num_groups() > 0.
  LastGroup last_group(std::string_view text) const;

 private:
  std::shared_ptr<const pcre2_real_code_8> code_;
};

}  // namespace tessera
