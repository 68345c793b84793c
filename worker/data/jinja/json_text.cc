#include "worker/data/jinja/json_text.h"

#include <algorithm>
#include <cmath>

#include "worker/data/jinja/frame.h"
#include "worker/data/utf8.h"

namespace tessera::jinja {
namespace {

constexpr int kMaxDepth = 200;

std::string unicode_escape(uint32_t unit) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) text += kDigits[(unit >> shift) & 15];
  return text;
}

void append_escaped(char32_t c, std::string& out) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\f':
      out += "\\f";
      return;
    case '\b':
      out += "\\b";
      return;
    default:
      break;
  }
  if (c < 0x10000) {
    out += unicode_escape(c);
  } else {
    out += unicode_escape(0xD800 + ((c - 0x10000) >> 10));
    out += unicode_escape(0xDC00 + ((c - 0x10000) & 0x3FF));
  }
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int depth) {
    check_text_size(out.size());
    if (depth > kMaxDepth) throw Error("a value for tojson is nested too deep");
    if (const auto* text = value.string()) {
      write_string(*text);
    } else if (value.is_none()) {
      out += "null";
    } else if (value.is_bool()) {
      out += truthy(value) ? "true" : "false";
    } else if (const auto integer = value.integer()) {
      out += std::to_string(*integer);
    } else if (value.is_float()) {
      out += float_json(*value.number());
    } else if (const auto* dict = value.dict()) {
      write_dict(*dict, depth);
    } else if (is_array(value)) {
      write_array(value.sequence()->items, depth);
    } else {
      throw Error("a value of type " + type_name(value) + " cannot be written as JSON");
    }
  }

  std::string out;

 private:
  static bool is_array(const Value& value) {
    const auto* sequence = value.sequence();
    return sequence &&
           (sequence->kind == SequenceKind::kList || sequence->kind == SequenceKind::kTuple);
  }

  static std::string float_json(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  void write_string(std::string_view text) {
    out += '"';
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = first_code_point(text.substr(i));
      const bool is_plain = c.value >= 0x20 && c.value != '"' && c.value != '\\' &&
                            (!style_.ensure_ascii || c.value < 0x7F);
      if (is_plain) {
        out += text.substr(i, static_cast<size_t>(c.num_bytes));
      } else {
        append_escaped(c.value, out);
      }
      i += static_cast<size_t>(c.num_bytes);
    }
    out += '"';
  }

  void break_line(int depth) {
    if (!style_.indent) return;
    out += '\n';
    for (int i = 0; i < depth; ++i) out += *style_.indent;
  }

  void write_array(const std::vector<Value>& items, int depth) {
    out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      break_line(depth + 1);
      write(items[i], depth + 1);
    }
    if (!items.empty()) break_line(depth);
    out += ']';
  }

  static std::string key_text(const Value& key) {
    if (const auto* text = key.string()) return *text;
    if (key.is_none()) return "null";
    if (key.is_bool()) return truthy(key) ? "true" : "false";
    if (const auto integer = key.integer()) return std::to_string(*integer);
    if (key.is_float()) return float_json(*key.number());
    throw Error("a key of type " + type_name(key) + " cannot be written as JSON");
  }

  void write_dict(const Dict& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      for (size_t i = 1; i < entries.size(); ++i) less(entries[i - 1]->first, entries[i]->first);
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    out += '{';
    bool is_first = true;
    for (const auto* entry : entries) {
      if (!is_first) out += style_.item_separator;
      is_first = false;
      break_line(depth + 1);
      write_string(key_text(entry->first));
      out += style_.key_separator;
      write(entry->second, depth + 1);
    }
    if (!entries.empty()) break_line(depth);
    out += '}';
  }

  const JsonStyle& style_;
};

}  // namespace

std::string json_text(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace tessera::jinja
