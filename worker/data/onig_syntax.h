// Regular expressions of tokenizer.json are Oniguruma's (Ruby syntax); ours are PCRE2's. The two
// agree but for a few constructs, rewritten here.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Rewrites for PCRE2 with UTF, UCP and MULTILINE. \s, \w, \b and [:alpha:] take Unicode's classes
// and not Perl's, \h is a hexadecimal digit, a{1,3}+ repeats instead of being possessive. Throws
// std::invalid_argument, naming it, on a construct that has no counterpart.
//
// Two differences remain: Oniguruma also matches several letters for one without case (ss for
// U+00DF), and each library knows the characters of its own Unicode version.
std::string pcre_from_onig(std::string_view pattern);

}  // namespace tessera
