#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/data/regex.h"

#include <pcre2.h>

#include <stdexcept>
#include <string>

#include "worker/data/onig_syntax.h"

namespace tessera {
namespace {

// Against patterns that backtrack without end. A match of the usual patterns takes a few dozen.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax = 8 << 20;
constexpr uint32_t kMaxParentheses = 100;

std::string message_of(int error) {
  PCRE2_UCHAR8 text[256];
  if (pcre2_get_error_message_8(error, text, sizeof(text)) < 0) return std::to_string(error);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Matcher::State {
  pcre2_match_data_8* data = pcre2_match_data_create_8(1, nullptr);
  pcre2_match_context_8* context = pcre2_match_context_create_8(nullptr);
  pcre2_jit_stack_8* stack = pcre2_jit_stack_create_8(kJitStackStart, kJitStackMax, nullptr);

  State() {
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit_8(context, kMatchLimit);
    pcre2_set_heap_limit_8(context, kHeapLimitKib);
    if (stack != nullptr) pcre2_jit_stack_assign_8(context, nullptr, stack);
  }
  ~State() {
    pcre2_jit_stack_free_8(stack);
    pcre2_match_context_free_8(context);
    pcre2_match_data_free_8(data);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Regex::Matcher::Matcher() : state_(std::make_unique<State>()) {}
Regex::Matcher::~Matcher() = default;
Regex::Matcher::Matcher(Matcher&&) noexcept = default;

Regex::Regex(std::string_view pattern, Syntax syntax) {
  if (pattern.size() > kMaxPatternBytes) {
    throw std::invalid_argument("it is longer than " + std::to_string(kMaxPatternBytes) + " bytes");
  }
  const bool literal = syntax == Syntax::kLiteral;
  const std::string source = literal ? std::string(pattern) : pcre_from_onig(pattern);
  const std::unique_ptr<pcre2_compile_context_8, decltype(&pcre2_compile_context_free_8)> context(
      pcre2_compile_context_create_8(nullptr), &pcre2_compile_context_free_8);
  pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit_8(context.get(), kMaxParentheses);
  const uint32_t options = literal
                               ? PCRE2_UTF | PCRE2_LITERAL
                               : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  size_t offset = 0;
  pcre2_code_8* code = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(source.data()), source.size(),
                                       options, &error, &offset, context.get());
  if (code == nullptr) throw std::invalid_argument(message_of(error));
  code_.reset(code, [](const pcre2_code_8* c) { pcre2_code_free_8(const_cast<pcre2_code_8*>(c)); });
  jit_ = pcre2_jit_compile_8(code, PCRE2_JIT_COMPLETE) == 0;
}

std::optional<Span> Regex::find(std::string_view text, size_t from, Matcher& matcher) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
  auto& state = *matcher.state_;
  const int found = jit_ ? pcre2_jit_match_8(code_.get(), subject, text.size(), from,
                                             PCRE2_NO_UTF_CHECK, state.data, state.context)
                         : pcre2_match_8(code_.get(), subject, text.size(), from,
                                         PCRE2_NO_UTF_CHECK, state.data, state.context);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) throw std::runtime_error("the pattern of the pre-tokenizer: " + message_of(found));
  const size_t* ends = pcre2_get_ovector_pointer_8(state.data);
  return Span{static_cast<uint32_t>(ends[0]), static_cast<uint32_t>(ends[1])};
}

}  // namespace tessera
