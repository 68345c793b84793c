#include "client/cpp/yaml_message.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <system_error>
#include <utility>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/util/time_util.h>

#include "absl/strings/str_cat.h"
#include "client/cpp/hints.h"
#include "tessera/v1/options.pb.h"

namespace tessera {
namespace {

using google::protobuf::Duration;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::TimeUtil;

constexpr size_t kMaxShown = 64;

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "empty";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a section";
    case YamlNode::Kind::kScalar:
      break;
  }
  const std::string text =
      node.scalar.size() <= kMaxShown ? node.scalar : node.scalar.substr(0, kMaxShown) + "...";
  return node.quoted ? absl::StrCat("the text \"", text, "\"") : text;
}

// The whole of `text` as a number; `error` tells a number that does not fit from what is none.
template <class Number>
struct Parsed {
  Number value{};
  std::errc error{};
};

template <class Number>
Parsed<Number> parse_number(const std::string& text) {
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  Parsed<Number> parsed;
  const auto [stop, error] = std::from_chars(begin, end, parsed.value);
  parsed.error = stop == end ? error : std::errc::invalid_argument;
  return parsed;
}

std::optional<bool> parse_bool(const std::string& text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return std::nullopt;
}

class Filler {
 public:
  FilledMessage take() { return std::move(out_); }

  void fill_section(const YamlNode& node, const std::string& path, Message& message) {
    if (node.kind == YamlNode::Kind::kNull && !path.empty()) return;
    if (node.kind != YamlNode::Kind::kMap) {
      const std::string what = path.empty() ? "the file" : path;
      return refuse(node.mark, absl::StrCat(what, " is ", describe(node),
                                            ", must be a section with fields: ", example(message)));
    }
    for (const YamlEntry& entry : node.entries) fill_entry(entry, path, message);
  }

 private:
  void refuse(Mark mark, const std::string& message) { out_.errors.push_back({mark, message}); }

  static std::string example(const Message& message) {
    std::string names;
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      absl::StrAppend(&names, i > 0 ? ", " : "", message.GetDescriptor()->field(i)->name());
    }
    return names;
  }

  void fill_entry(const YamlEntry& entry, const std::string& section, Message& message) {
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(entry.key);
    if (field == nullptr) {
      return refuse(entry.mark,
                    explain_unknown_field(*message.GetDescriptor(), section, entry.key));
    }
    const std::string path = section.empty() ? entry.key : absl::StrCat(section, ".", entry.key);
    const auto [first, is_new] = out_.marks.emplace(path, entry.mark);
    if (!is_new) {
      return refuse(entry.mark,
                    absl::StrCat(path, " is given twice, first on line ", first->second.line));
    }
    if (const auto* oneof = field->real_containing_oneof()) {
      const auto* other = message.GetReflection()->GetOneofFieldDescriptor(message, oneof);
      if (other != nullptr) {
        return refuse(entry.mark,
                      absl::StrCat(section.empty() ? "the file" : section, " holds ", other->name(),
                                   " and ", entry.key, ", must hold exactly one"));
      }
    }
    fill_field(entry, *field, path, message);
  }

  void fill_field(const YamlEntry& entry, const FieldDescriptor& field, const std::string& path,
                  Message& message) {
    if (field.is_repeated()) return fill_list(entry, field, path, message);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message& inner = *message.GetReflection()->MutableMessage(&message, &field);
      if (field.message_type() == Duration::descriptor()) {
        return fill_duration(entry, path, static_cast<Duration&>(inner));
      }
      return fill_section(entry.value, path, inner);
    }
    const std::string wanted = fill_scalar(entry.value, field, message);
    if (!wanted.empty()) refuse_value(entry, path, wanted, &field);
  }

  void fill_list(const YamlEntry& entry, const FieldDescriptor& field, const std::string& path,
                 Message& message) {
    const YamlNode& value = entry.value;
    if (value.kind != YamlNode::Kind::kList) return fill_element(entry, field, path, message);
    for (size_t i = 0; i < value.items.size(); ++i) {
      const YamlEntry item{entry.key, value.items[i].mark, value.items[i]};
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      out_.marks.emplace(item_path, item.mark);
      fill_element(item, field, item_path, message);
    }
  }

  void fill_element(const YamlEntry& entry, const FieldDescriptor& field, const std::string& path,
                    Message& message) {
    const auto& reflection = *message.GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return fill_section(entry.value, path, *reflection.AddMessage(&message, &field));
    }
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
      const std::string wanted =
          field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE
              ? fill_number<double>(
                    entry.value, "a number",
                    [&](double value) { reflection.AddDouble(&message, &field, value); })
              : fill_number<int32_t>(entry.value, "a whole number", [&](int32_t value) {
                  reflection.AddInt32(&message, &field, value);
                });
      if (!wanted.empty()) refuse_value(entry, path, wanted + ", or a list of them", &field);
      return;
    }
    if (entry.value.kind != YamlNode::Kind::kScalar) {
      return refuse_value(entry, path, "a text or a list of texts", &field);
    }
    reflection.AddString(&message, &field, entry.value.scalar);
  }

  void refuse_value(const YamlEntry& entry, const std::string& path, const std::string& wanted,
                    const FieldDescriptor* field) {
    std::string message = absl::StrCat(path, " is ", describe(entry.value), ", must be ", wanted);
    if (entry.value.kind == YamlNode::Kind::kNull) {
      // TRL takes none as "no limit" for some fields: it must not silently become the default.
      const std::string& fallback = field->options().GetExtension(v1::rule).default_();
      absl::StrAppend(&message, "; without the line it is ", fallback.empty() ? "unset" : fallback);
      return refuse(entry.mark, message);
    }
    refuse(entry.value.mark, message);
  }

  // Hands the number to `set`, or returns `wanted`, with its width where a number does not fit.
  template <class Number, class Set>
  static std::string fill_number(const YamlNode& node, const char* wanted, Set set) {
    if (node.kind != YamlNode::Kind::kScalar || node.quoted) return wanted;
    const auto parsed = parse_number<Number>(node.scalar);
    if (parsed.error == std::errc::result_out_of_range) {
      return absl::StrCat(wanted, " that fits ", 8 * sizeof(Number), " bits");
    }
    if (parsed.error != std::errc()) return wanted;
    set(parsed.value);
    return "";
  }

  // Returns what the field wants where `node` is not that.
  static std::string fill_scalar(const YamlNode& node, const FieldDescriptor& field,
                                 Message& message) {
    const auto& reflection = *message.GetReflection();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return fill_number<int32_t>(node, "a whole number", [&](int32_t value) {
          reflection.SetInt32(&message, &field, value);
        });
      case FieldDescriptor::CPPTYPE_INT64:
        return fill_number<int64_t>(node, "a whole number", [&](int64_t value) {
          reflection.SetInt64(&message, &field, value);
        });
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return fill_number<double>(
            node, "a number", [&](double value) { reflection.SetDouble(&message, &field, value); });
      case FieldDescriptor::CPPTYPE_BOOL: {
        const auto value = node.quoted ? std::nullopt : parse_bool(node.scalar);
        if (!value) return "true or false";
        reflection.SetBool(&message, &field, *value);
        return "";
      }
      default: {
        GOOGLE_CHECK(field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) << field.full_name();
        if (node.kind != YamlNode::Kind::kScalar) return "a text";
        reflection.SetString(&message, &field, node.scalar);
        return "";
      }
    }
  }

  // "600s", or a number of seconds.
  void fill_duration(const YamlEntry& entry, const std::string& path, Duration& duration) {
    const YamlNode& node = entry.value;
    const bool scalar = node.kind == YamlNode::Kind::kScalar;
    const bool number =
        scalar && !node.quoted && parse_number<double>(node.scalar).error == std::errc();
    if (scalar && TimeUtil::FromString(number ? node.scalar + "s" : node.scalar, &duration)) return;
    refuse(node.mark, absl::StrCat(path, " is ", describe(node),
                                   ", must be a number of seconds, as in 600 or \"600s\""));
  }

  FilledMessage out_;
};

}  // namespace

FilledMessage fill_from_yaml(const YamlNode& root, Message& message) {
  Filler filler;
  filler.fill_section(root, "", message);
  return filler.take();
}

}  // namespace tessera
