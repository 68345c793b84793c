#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/rewards/pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <new>
#include <stdexcept>

namespace tessera {
namespace {

// Steps of one search. A pattern without nested repeats takes a few a character.
constexpr uint32_t kMatchLimit = 10'000'000;
// Of all searches of one text: those that find nothing end the search, the others move on.
constexpr uint32_t kMaxMatches = 100'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax = 8 << 20;

struct Free {
  void operator()(pcre2_match_data_8* data) const { pcre2_match_data_free_8(data); }
  void operator()(pcre2_match_context_8* context) const { pcre2_match_context_free_8(context); }
  void operator()(pcre2_jit_stack_8* stack) const { pcre2_jit_stack_free_8(stack); }
};

std::string message_of(int error) {
  PCRE2_UCHAR8 text[256];
  if (pcre2_get_error_message_8(error, text, sizeof(text)) < 0) return std::to_string(error);
  return reinterpret_cast<const char*>(text);
}

// What a search needs of its own.
class Searcher {
 public:
  explicit Searcher(const pcre2_code_8* code)
      : code_(code),
        data_(pcre2_match_data_create_from_pattern_8(code, nullptr)),
        context_(pcre2_match_context_create_8(nullptr)),
        stack_(pcre2_jit_stack_create_8(kJitStackStart, kJitStackMax, nullptr)) {
    if (!data_ || !context_ || !stack_) throw std::bad_alloc();
    pcre2_set_match_limit_8(context_.get(), kMatchLimit);
    pcre2_set_heap_limit_8(context_.get(), kHeapLimitKib);
    pcre2_jit_stack_assign_8(context_.get(), nullptr, stack_.get());
  }

  Pattern::Search search(std::string_view text, size_t from, uint32_t options = 0) {
    const int found = pcre2_match_8(code_, reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(),
                                    from, options, data_.get(), context_.get());
    if (found == PCRE2_ERROR_NOMATCH) return Pattern::Search::kNone;
    return found < 0 ? Pattern::Search::kGaveUp : Pattern::Search::kFound;
  }

  // Of the last match: begin and end of group i at [2 i] and [2 i + 1].
  const size_t* ends() const { return pcre2_get_ovector_pointer_8(data_.get()); }

 private:
  const pcre2_code_8* code_;
  std::unique_ptr<pcre2_match_data_8, Free> data_;
  std::unique_ptr<pcre2_match_context_8, Free> context_;
  std::unique_ptr<pcre2_jit_stack_8, Free> stack_;
};

}  // namespace

Pattern::Pattern(const std::string& pattern, Extent extent) {
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  if (extent == Extent::kWhole) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  int error = 0;
  size_t offset = 0;
  pcre2_code_8* code = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()),
                                       pattern.size(), options, &error, &offset, nullptr);
  if (code == nullptr)
    throw std::invalid_argument(message_of(error) + " at offset " + std::to_string(offset));
  code_.reset(code, [](const pcre2_code_8* c) { pcre2_code_free_8(const_cast<pcre2_code_8*>(c)); });
  // Where it cannot be compiled to machine code, pcre2_match interprets it.
  pcre2_jit_compile_8(code, PCRE2_JIT_COMPLETE);
}

int Pattern::num_groups() const {
  uint32_t count = 0;
  pcre2_pattern_info_8(code_.get(), PCRE2_INFO_CAPTURECOUNT, &count);
  return static_cast<int>(count);
}

std::optional<bool> Pattern::matches(std::string_view text) const {
  const Search search = Searcher(code_.get()).search(text, 0);
  if (search == Search::kGaveUp) return std::nullopt;
  return search == Search::kFound;
}

Pattern::LastGroup Pattern::last_group(std::string_view text) const {
  Searcher searcher(code_.get());
  LastGroup last;
  size_t from = 0;
  uint32_t options = 0;
  for (uint32_t i = 0; i < kMaxMatches; ++i) {
    const Search search = searcher.search(text, from, options);
    if (search == Search::kGaveUp) return {search, {}};
    if (search == Search::kNone) return last;
    const size_t* ends = searcher.ends();
    last = {ends[2] == PCRE2_UNSET ? Search::kNone : Search::kFound, {}};
    if (last.search == Search::kFound) last.text = text.substr(ends[2], ends[3] - ends[2]);
    // \K may put a match's end before its begin. After an empty match only a longer one, or a later
    // one, is news.
    const size_t end = std::max(ends[0], ends[1]);
    options = end == from || ends[0] == ends[1] ? PCRE2_NOTEMPTY_ATSTART : 0;
    from = end;
  }
  return {Search::kGaveUp, {}};
}

}  // namespace tessera
