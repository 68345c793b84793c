// Patterns of pre-tokenizers, which are Oniguruma's, as PCRE2 is given them.
#include "worker/data/regex.h"

#include <stdexcept>
#include <string>

#include "tests/fuzz/fuzz.h"
#include "worker/data/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto [pattern, given] = fuzz::parts_of<2>(fuzz::text_of(data, size));
  const std::string text = to_valid_utf8(given);
  try {
    const Regex regex(pattern);
    Regex::Matcher matcher;
    size_t from = 0;
    while (const auto found = regex.find(text, from, matcher)) {
      fuzz::require(from <= found->begin && found->begin <= found->end && found->end <= text.size(),
                    "a match lies in the text that was searched");
      if (found->end == from) break;  // nothing: at the next character the same may begin
      from = found->end;
    }
  } catch (const std::invalid_argument&) {
  } catch (const std::runtime_error&) {  // it takes too long
  }
  return 0;
}
