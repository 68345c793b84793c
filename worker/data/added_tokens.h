// Tokens that are found in a text before anything else looks at it: special ones and what users
// add.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/aligned_text.h"

namespace tessera {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalised text
  bool special = false;      // left out of decoded text on request
  bool ignored = false;      // where it stands in a text, it is text
};

// A stretch of text: a token, or what lies between tokens.
struct AddedTokenPart {
  const AddedToken* token = nullptr;  // null between tokens
  Span span;
};

// Finds added tokens, the leftmost first and of those the longest. Immutable once built.
class AddedTokenMatcher {
 public:
  // `content` is what to look for; `token` outlives this.
  void add(std::string_view content, const AddedToken* token);
  // Parts that cover the text, in order. Requires valid UTF-8.
  void split(std::string_view text, std::vector<AddedTokenPart>& parts) const;

 private:
  struct Node {
    const AddedToken* token = nullptr;
    std::map<char, int32_t> next;
  };
  struct Match {
    const AddedToken* token = nullptr;
    size_t length = 0;
  };
  Match longest_at(std::string_view text) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);  // a trie; 0 is the root
};

}  // namespace tessera
