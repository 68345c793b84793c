#include "worker/data/replace.h"

#include "worker/data/split.h"

namespace tessera {

Replace::Replace(const JsonNode& node) : content_(node.at("content").string()) {
  const JsonNode pattern = node.at("pattern");
  if (const auto literal = pattern.find("String"); literal && !literal->string().empty()) {
    literal_ = literal->string();
  } else {
    regex_ = regex_of(pattern);
  }
}

void Replace::apply(AlignedText& text) const {
  if (!regex_ && text.text.find(literal_) == std::string::npos) return;
  AlignedBuilder out(text);
  const auto replace = [&](Span match) {
    if (match.end == 0) {
      out.insert_at_front(content_);
    } else {
      out.insert(content_, match.end - 1);
    }
  };
  if (regex_) {
    Regex::Matcher matcher;
    const Span all{0, static_cast<uint32_t>(text.text.size())};
    for_each_part(*regex_, text.text, all, matcher,
                  [&](Span part, bool match) { match ? replace(part) : out.copy(part); });
  } else {
    size_t done = 0;
    for (size_t at; (at = text.text.find(literal_, done)) != std::string::npos;
         done = at + literal_.size()) {
      out.copy({static_cast<uint32_t>(done), static_cast<uint32_t>(at)});
      replace({static_cast<uint32_t>(at), static_cast<uint32_t>(at + literal_.size())});
    }
    out.copy({static_cast<uint32_t>(done), static_cast<uint32_t>(text.text.size())});
  }
  text = out.take();
}

std::string Replace::apply(std::string_view text) const {
  AlignedText aligned;
  aligned.assign(text, 0);
  apply(aligned);
  return std::move(aligned.text);
}

}  // namespace tessera
