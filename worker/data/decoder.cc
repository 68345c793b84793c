#include "worker/data/decoder.h"

#include <algorithm>
#include <optional>

#include "worker/data/byte_level.h"
#include "worker/data/metaspace.h"
#include "worker/data/replace.h"
#include "worker/data/utf8.h"

namespace tessera {
namespace {

using Made = std::unique_ptr<const Decoder>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// Takes away the space before punctuation and contractions.
void tighten(std::string& text, bool joins_do_not) {
  for (const std::string_view mark : {" .", " ?", " !", " ,"}) {
    replace_all(text, mark, mark.substr(1));
  }
  replace_all(text, " ' ", "'");
  replace_all(text, " n't", "n't");
  replace_all(text, " 'm", "'m");
  if (joins_do_not) replace_all(text, " do not", " don't");
  for (const std::string_view ending : {" 's", " 've", " 're"}) {
    replace_all(text, ending, ending.substr(1));
  }
}

class DecoderSequence final : public Decoder {
 public:
  explicit DecoderSequence(const JsonNode& node) {
    for (const JsonNode& part : node.at("decoders").elements()) {
      parts_.push_back(make_decoder(part));
    }
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (const auto& part : parts_) part->apply(tokens);
  }
  bool is_byte_level() const override { return parts_.size() == 1 && parts_[0]->is_byte_level(); }

 private:
  std::vector<Made> parts_;
};

class ByteLevelDecoder final : public Decoder {
 public:
  explicit ByteLevelDecoder(const JsonNode&) {}
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const auto& token : tokens) bytes += bytes_of_token(token).value_or(token);
    tokens.assign(1, to_valid_utf8(bytes));
  }
  bool is_byte_level() const override { return true; }
};

// <0x41> is a byte. Bytes that are no text become a replacement character each.
class ByteFallback final : public Decoder {
 public:
  explicit ByteFallback(const JsonNode&) {}
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (is_valid_utf8(bytes)) {
        if (!bytes.empty()) out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (auto& token : tokens) {
      if (const auto byte = byte_of(token)) {
        bytes.push_back(*byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    int value = 0;
    for (size_t i = 3; i < 5; ++i) {
      const char c = token[i];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      // Rust reads "+5" as a number, too.
      if (digit < 0 && !(i == 3 && c == '+')) return std::nullopt;
      value = value * 16 + std::max(digit, 0);
    }
    return static_cast<char>(value);
  }
};

class Fuse final : public Decoder {
 public:
  explicit Fuse(const JsonNode&) {}
  void apply(std::vector<std::string>& tokens) const override {
    std::string text;
    for (const auto& token : tokens) text += token;
    tokens.assign(1, std::move(text));
  }
};

class MetaspaceDecoder final : public Decoder {
 public:
  explicit MetaspaceDecoder(const JsonNode& node)
      : replacement_(metaspace_of(node)),
        prepended_(prepend_scheme_of(node) != Metaspace::PrependScheme::kNever) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], replacement_, i == 0 && prepended_ ? "" : " ");
    }
  }

 private:
  std::string replacement_;
  bool prepended_;
};

class ReplaceDecoder final : public Decoder {
 public:
  explicit ReplaceDecoder(const JsonNode& node) : replace_(node) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (auto& token : tokens) token = replace_.apply(token);
  }

 private:
  Replace replace_;
};

// Up to so many of a character at the ends of each token.
class StripDecoder final : public Decoder {
 public:
  explicit StripDecoder(const JsonNode& node)
      : content_(node.at("content").string()),
        start_(count(node.at("start"))),
        stop_(count(node.at("stop"))) {
    if (content_.empty()) node.at("content").fail("is not one character");
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (auto& token : tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start_ && rest.starts_with(content_); ++i) {
        rest.remove_prefix(content_.size());
      }
      for (int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i) {
        rest.remove_suffix(content_.size());
      }
      if (rest.size() != token.size()) token = std::string(rest);
    }
  }

 private:
  static int64_t count(const JsonNode& node) {
    if (node.integer() < 0) node.fail("is negative");
    return node.integer();
  }

  std::string content_;
  int64_t start_;
  int64_t stop_;
};

class WordPieceDecoder final : public Decoder {
 public:
  explicit WordPieceDecoder(const JsonNode& node)
      : prefix_(node.at("prefix").string()), cleanup_(node.at("cleanup").boolean()) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix_)) {
        tokens[i].erase(0, prefix_.size());
      } else if (i > 0) {
        tokens[i].insert(0, " ");
      }
      if (cleanup_) tighten(tokens[i], true);
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

// A mark at the end of a word becomes a space.
class BpeDecoder final : public Decoder {
 public:
  explicit BpeDecoder(const JsonNode& node) : suffix_(node.at("suffix").string()) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
    }
  }

 private:
  std::string suffix_;
};

template <typename T>
Made make(const JsonNode& node) {
  return std::make_unique<T>(node);
}

struct Kind {
  std::string_view type;
  Made (*make)(const JsonNode&);
};
constexpr Kind kKinds[] = {
    {"BPEDecoder", make<BpeDecoder>},      {"ByteFallback", make<ByteFallback>},
    {"ByteLevel", make<ByteLevelDecoder>}, {"Fuse", make<Fuse>},
    {"Metaspace", make<MetaspaceDecoder>}, {"Replace", make<ReplaceDecoder>},
    {"Sequence", make<DecoderSequence>},   {"Strip", make<StripDecoder>},
    {"WordPiece", make<WordPieceDecoder>},
};

}  // namespace

Made make_decoder(const JsonNode& node) {
  const auto type = node.at("type").string();
  for (const Kind& kind : kKinds) {
    if (kind.type == type) return kind.make(node);
  }
  node.fail("is of type " + std::string(type) + ", which is not supported");
}

std::string clean_up_spaces(std::string text) {
  tighten(text, false);
  return text;
}

}  // namespace tessera
