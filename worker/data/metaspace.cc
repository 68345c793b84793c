#include "worker/data/metaspace.h"

#include "worker/data/utf8.h"

namespace tessera {

Metaspace::PrependScheme prepend_scheme_of(const JsonNode& metaspace) {
  using Scheme = Metaspace::PrependScheme;
  Scheme scheme = Scheme::kAlways;
  if (const auto node = metaspace.find("prepend_scheme")) {
    const auto name = node->string();
    if (name == "first") {
      scheme = Scheme::kFirst;
    } else if (name == "never") {
      scheme = Scheme::kNever;
    } else if (name != "always") {
      node->fail("is \"" + std::string(name) + "\", which is no scheme of Metaspace");
    }
    if (scheme != Scheme::kNever && !metaspace.boolean("add_prefix_space", true)) {
      node->fail("contradicts add_prefix_space");
    }
  }
  return metaspace.boolean("add_prefix_space", true) ? scheme : Scheme::kNever;
}

std::string metaspace_of(const JsonNode& metaspace) {
  const auto text = metaspace.at("replacement").string();
  if (text.empty() || static_cast<size_t>(first_code_point(text).num_bytes) != text.size()) {
    metaspace.at("replacement").fail("is not one character");
  }
  return std::string(text);
}

Metaspace::Metaspace(const JsonNode& node)
    : replacement_(metaspace_of(node)),
      scheme_(prepend_scheme_of(node)),
      split_(node.boolean("split", true)) {}

void Metaspace::apply(Pieces& pieces, Regex::Matcher&) const {
  AlignedBuilder out(pieces.text);
  const std::string_view text = pieces.text.text;
  pieces.scratch.clear();
  for (const Span piece : pieces.spans) {
    const bool bare = text[piece.begin] != ' ' && !slice(text, piece).starts_with(replacement_);
    const bool first = pieces.text.tracked ? pieces.text.origins[piece.begin].begin == 0
                                           : pieces.text.base == 0 && piece.begin == 0;
    const bool prepends =
        scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && first);
    auto begin = static_cast<uint32_t>(out.size());
    if (prepends && bare) out.insert(replacement_, piece.begin);
    // What stands between the marks is copied whole.
    uint32_t copied = piece.begin;
    const auto cut = [&] {
      const auto here = static_cast<uint32_t>(out.size());
      if (split_ && here > begin) {
        pieces.scratch.push_back({begin, here});
        begin = here;
      }
    };
    for (uint32_t i = piece.begin; i < piece.end; ++i) {
      const bool space = text[i] == ' ';
      if (!space && (text[i] != replacement_[0] ||
                     !text.substr(i, piece.end - i).starts_with(replacement_))) {
        continue;
      }
      out.copy({copied, i});
      cut();
      space ? out.insert(replacement_, i)
            : out.copy({i, i + static_cast<uint32_t>(replacement_.size())});
      if (!space) i += static_cast<uint32_t>(replacement_.size()) - 1;
      copied = i + 1;
    }
    out.copy({copied, piece.end});
    if (out.size() > begin) pieces.scratch.push_back({begin, static_cast<uint32_t>(out.size())});
  }
  pieces.text = out.take();
  pieces.spans.swap(pieces.scratch);
}

}  // namespace tessera
