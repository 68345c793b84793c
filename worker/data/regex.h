// Patterns of pre-tokenizers, matched by PCRE2's JIT within bounds of time and memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "worker/data/aligned_text.h"

struct pcre2_real_code_8;

namespace tessera {

inline constexpr size_t kMaxPatternBytes = 16 << 10;

// Immutable; a Matcher is what one thread needs to use it, and serves any pattern.
class Regex {
 public:
  enum class Syntax { kOniguruma, kLiteral };

  class Matcher {
   public:
    Matcher();
    ~Matcher();
    Matcher(Matcher&&) noexcept;

   private:
    friend class Regex;
    struct State;
    std::unique_ptr<State> state_;
  };

  // Throws std::invalid_argument saying what is wrong with the pattern.
  explicit Regex(std::string_view pattern, Syntax syntax = Syntax::kOniguruma);

  // The first match that begins at `from` or later. Requires valid UTF-8, and `from` between
  // characters. Throws std::runtime_error when the match takes too long.
  std::optional<Span> find(std::string_view text, size_t from, Matcher& matcher) const;

 private:
  std::shared_ptr<const pcre2_real_code_8> code_;
  bool jit_ = false;
};

}  // namespace tessera
