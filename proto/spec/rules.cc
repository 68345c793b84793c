#include "proto/spec/rules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/util/time_util.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/spec/field_text.h"
#include "proto/spec/relations.h"
#include "tessera/v1/options.pb.h"

namespace tessera::spec {
namespace {

using google::protobuf::Duration;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::TimeUtil;

constexpr size_t kMaxPathLength = 4096;
constexpr size_t kMaxQuotedLength = 64;

const v1::Rule& rule_of(const FieldDescriptor& field) {
  return field.options().GetExtension(v1::rule);
}

bool is_duration(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type() == Duration::descriptor();
}

bool is_section(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !is_duration(field);
}

// A plain proto3 scalar has no presence: its zero value is its absence, as an empty list is a
// list's.
bool is_present(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  if (field.is_repeated()) return reflection.FieldSize(message, &field) > 0;
  return reflection.HasField(message, &field);
}

// "data.train" for the only element of a list, as a list of one is written; else "data.train[1]".
std::string element_path(const std::string& path, int index, int size) {
  return size == 1 ? path : absl::StrCat(path, "[", index, "]");
}

bool is_word(const v1::Rule& rule, const std::string& value) {
  return std::find(rule.one_of().begin(), rule.one_of().end(), value) != rule.one_of().end();
}

std::string quote(absl::string_view text) {
  if (text.size() <= kMaxQuotedLength) return absl::StrCat("\"", text, "\"");
  return absl::StrCat("\"", text.substr(0, kMaxQuotedLength), "...\"");
}

void fill(Message& message) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const v1::Rule& rule = rule_of(field);
    const bool present = is_present(message, field);
    if (is_section(field) && field.is_repeated()) {
      for (int j = 0; j < message.GetReflection()->FieldSize(message, &field); ++j) {
        fill(*message.GetReflection()->MutableRepeatedMessage(&message, &field, j));
      }
    } else if (is_section(field)) {
      const bool filled =
          !rule.required() && !rule.keep_absent() && field.real_containing_oneof() == nullptr;
      if (present || filled) fill(*message.GetReflection()->MutableMessage(&message, &field));
    } else if (!present && !rule.default_().empty()) {
      GOOGLE_CHECK(from_text(rule.default_(), message, field))
          << "bad default " << rule.default_() << " of " << field.full_name();
    }
  }
}

// Checks one present field; `path` is its full name.
class FieldCheck {
 public:
  FieldCheck(const Message& message, const FieldDescriptor& field, const std::string& path,
             std::vector<Violation>& out)
      : message_(message), field_(field), rule_(rule_of(field)), path_(path), out_(out) {}

  void run() {
    const auto& reflection = *message_.GetReflection();
    if (field_.is_repeated()) return check_list(reflection);
    switch (field_.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return;
      case FieldDescriptor::CPPTYPE_INT32:
        return check_number(reflection.GetInt32(message_, &field_));
      case FieldDescriptor::CPPTYPE_INT64:
        return check_number(static_cast<double>(reflection.GetInt64(message_, &field_)));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return check_number(reflection.GetDouble(message_, &field_));
      case FieldDescriptor::CPPTYPE_STRING:
        return check_string(reflection.GetString(message_, &field_));
      default:
        GOOGLE_CHECK(is_duration(field_)) << "no check for the type of " << field_.full_name();
        check_duration(static_cast<const Duration&>(reflection.GetMessage(message_, &field_)));
    }
  }

 private:
  void refuse(const std::string& value, const std::string& must) {
    out_.push_back({path_, absl::StrCat(path_, " is ", value, ", must ", must)});
  }

  // True when `value` is within the rule's range; else refuses, naming the bound with its unit.
  bool check_range(double value, const std::string& shown, const std::string& unit) {
    const bool low =
        rule_.has_min() && (rule_.exclusive_min() ? value <= rule_.min() : value < rule_.min());
    const bool high =
        rule_.has_max() && (rule_.exclusive_max() ? value >= rule_.max() : value > rule_.max());
    if (low) {
      refuse(shown, absl::StrCat(rule_.exclusive_min() ? "be above " : "be at least ",
                                 to_text(rule_.min()), unit));
    } else if (high) {
      refuse(shown, absl::StrCat(rule_.exclusive_max() ? "be below " : "be at most ",
                                 to_text(rule_.max()), unit));
    }
    return !low && !high;
  }

  void check_number(double value) {
    if (!std::isfinite(value)) return refuse(to_text(value), "be a finite number");
    check_range(value, to_text(value), "");
  }

  // A list's bounds are of its length.
  void check_list(const google::protobuf::Reflection& reflection) {
    const int size = reflection.FieldSize(message_, &field_);
    if (!check_range(size, absl::StrCat("a list of ", size), " long")) return;
    // Each section is checked as one; numbers have no rule but in relations.cc.
    if (field_.cpp_type() != FieldDescriptor::CPPTYPE_STRING) return;
    const std::string list = path_;
    for (int i = 0; i < size; ++i) {
      path_ = element_path(list, i, size);
      check_text(reflection.GetRepeatedString(message_, &field_, i));
    }
  }

  void check_string(const std::string& value) {
    if (!check_range(static_cast<double>(value.size()), quote(value), " characters long")) return;
    check_text(value);
  }

  void check_text(const std::string& value) {
    const auto& allowed = rule_.one_of();
    if (is_word(rule_, value)) return;
    if (!allowed.empty() && !rule_.path()) {
      return refuse(quote(value), absl::StrCat(allowed.size() > 1 ? "be one of " : "be ",
                                               absl::StrJoin(allowed, ", ")));
    }
    if (!rule_.path()) return;
    if (value.empty()) return refuse(quote(value), "be a path");
    if (value.size() > kMaxPathLength) {
      return refuse(quote(value), absl::StrCat("be at most ", kMaxPathLength, " characters long"));
    }
    if (std::any_of(value.begin(), value.end(), [](char c) { return absl::ascii_iscntrl(c); })) {
      refuse("a path with a control character", "hold none");
    }
  }

  void check_duration(const Duration& value) {
    const bool in_range = std::abs(value.seconds()) <= TimeUtil::kDurationMaxSeconds &&
                          std::abs(int64_t{value.nanos()}) < 1'000'000'000 &&
                          (value.nanos() == 0 || value.seconds() == 0 ||
                           (value.seconds() < 0) == (value.nanos() < 0));
    if (!in_range) return refuse("out of range", "be a duration, as in \"600s\"");
    const double seconds = static_cast<double>(value.seconds()) + value.nanos() * 1e-9;
    check_range(seconds, TimeUtil::ToString(value), "s");
  }

  const Message& message_;
  const FieldDescriptor& field_;
  const v1::Rule& rule_;
  std::string path_;
  std::vector<Violation>& out_;
};

void check(const Message& message, const std::string& prefix, std::vector<Violation>& out);

void check_elements(const Message& message, const FieldDescriptor& field, const std::string& path,
                    std::vector<Violation>& out) {
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    check(reflection.GetRepeatedMessage(message, &field, i), absl::StrCat(path, "[", i, "]."), out);
  }
}

void check(const Message& message, const std::string& prefix, std::vector<Violation>& out) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const std::string path = prefix + field.name();
    if (!is_present(message, field)) {
      if (rule_of(field).required()) out.push_back({path, absl::StrCat(path, " is missing")});
    } else if (is_section(field) && !field.is_repeated()) {
      check(message.GetReflection()->GetMessage(message, &field), path + ".", out);
    } else {
      FieldCheck(message, field, path, out).run();
      if (is_section(field)) check_elements(message, field, path, out);
    }
  }
}

std::string absolute(const std::string& given, const std::filesystem::path& base) {
  if (given.empty()) return given;
  std::filesystem::path path = (base / given).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.string();
}

void resolve(Message& message, const std::filesystem::path& base) {
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (!is_present(message, field)) continue;
    const int size = field.is_repeated() ? reflection.FieldSize(message, &field) : 0;
    if (is_section(field)) {
      if (!field.is_repeated()) resolve(*reflection.MutableMessage(&message, &field), base);
      for (int j = 0; j < size; ++j) {
        resolve(*reflection.MutableRepeatedMessage(&message, &field, j), base);
      }
    } else if (rule_of(field).path()) {
      if (!field.is_repeated()) {
        const std::string given = reflection.GetString(message, &field);
        if (is_word(rule_of(field), given)) continue;
        reflection.SetString(&message, &field, absolute(given, base));
      }
      for (int j = 0; j < size; ++j) {
        reflection.SetRepeatedString(
            &message, &field, j, absolute(reflection.GetRepeatedString(message, &field, j), base));
      }
    }
  }
}

// Requires: `prefix` is empty, or ends with a point.
void collect_paths(const Message& message, const std::string& prefix, std::vector<NamedPath>& out) {
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (!is_present(message, field)) continue;
    const std::string path = absl::StrCat(prefix, field.name());
    const bool is_path = rule_of(field).path();
    if (!is_section(field) && !is_path) continue;
    if (!field.is_repeated()) {
      if (!is_path) {
        collect_paths(reflection.GetMessage(message, &field), path + ".", out);
      } else if (const std::string value = reflection.GetString(message, &field);
                 !value.empty() && !is_word(rule_of(field), value)) {
        out.push_back({path, value});
      }
      continue;
    }
    const int size = reflection.FieldSize(message, &field);
    for (int j = 0; j < size; ++j) {
      const std::string element = element_path(path, j, size);
      if (is_path) {
        out.push_back({element, reflection.GetRepeatedString(message, &field, j)});
      } else {
        collect_paths(reflection.GetRepeatedMessage(message, &field, j), element + ".", out);
      }
    }
  }
}

}  // namespace

void fill_defaults(v1::JobSpec& spec) {
  fill(spec);
  fill_mesh(*spec.mutable_parallelism());
  if (spec.has_training()) fill_learning_rate(spec);
}

std::vector<Violation> validate(const v1::JobSpec& spec) {
  std::vector<Violation> violations;
  check(spec, "", violations);
  validate_relations(spec, violations);
  return violations;
}

std::vector<NamedPath> paths_of(const v1::JobSpec& spec) {
  std::vector<NamedPath> paths;
  collect_paths(spec, "", paths);
  return paths;
}

void resolve_paths(v1::JobSpec& spec, const std::filesystem::path& base) { resolve(spec, base); }

}  // namespace tessera::spec
