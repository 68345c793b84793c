#include "proto/spec/fields.h"

#include <charconv>
#include <optional>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::spec {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// The fields of a path, sections first. Empty where there is no such field of a single value.
std::vector<const FieldDescriptor*> find(const std::string& path) {
  std::vector<const FieldDescriptor*> fields;
  const google::protobuf::Descriptor* type = v1::JobSpec::descriptor();
  for (const auto part : absl::StrSplit(path, '.')) {
    const FieldDescriptor* field =
        type == nullptr ? nullptr : type->FindFieldByName(std::string(part));
    if (field == nullptr || field->is_repeated()) return {};
    fields.push_back(field);
    type = field->message_type();
  }
  return type == nullptr ? fields : std::vector<const FieldDescriptor*>{};
}

std::string render(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      char text[32];
      const double value = reflection.GetDouble(message, &field);
      return {text, std::to_chars(text, text + sizeof text, value).ptr};
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, &field);
    default:
      return "";
  }
}

// Of a message that exists. With a null message only the text is looked at.
bool assign(Message* message, const FieldDescriptor& field, const std::string& text) {
  const Reflection* reflection = message == nullptr ? nullptr : message->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return false;
      if (message != nullptr) reflection->SetBool(message, &field, text == "true");
      return true;
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return false;
      if (message != nullptr) reflection->SetInt32(message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return false;
      if (message != nullptr) reflection->SetInt64(message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value)) return false;
      if (message != nullptr) reflection->SetDouble(message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      if (message != nullptr) reflection->SetString(message, &field, text);
      return true;
    default:
      return false;
  }
}

}  // namespace

bool has_field(const v1::JobSpec& spec, const std::string& path) {
  const Message* message = &spec;
  const auto fields = find(path);
  for (const FieldDescriptor* field : fields) {
    if (!message->GetReflection()->HasField(*message, field)) return false;
    if (field != fields.back()) message = &message->GetReflection()->GetMessage(*message, field);
  }
  return !fields.empty();
}

std::string get_field(const v1::JobSpec& spec, const std::string& path) {
  if (!has_field(spec, path)) return "";
  const Message* message = &spec;
  const auto fields = find(path);
  for (size_t i = 0; i + 1 < fields.size(); ++i) {
    message = &message->GetReflection()->GetMessage(*message, fields[i]);
  }
  return render(*message, *fields.back());
}

bool set_field(v1::JobSpec& spec, const std::string& path, const std::string& text) {
  const auto fields = find(path);
  if (fields.empty() || !assign(nullptr, *fields.back(), text)) return false;
  Message* message = &spec;
  for (size_t i = 0; i + 1 < fields.size(); ++i) {
    message = message->GetReflection()->MutableMessage(message, fields[i]);
  }
  return assign(message, *fields.back(), text);
}

}  // namespace tessera::spec
