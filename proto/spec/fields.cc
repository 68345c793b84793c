#include "proto/spec/fields.h"

#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "absl/strings/str_split.h"
#include "proto/spec/field_text.h"

namespace tessera::spec {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

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
  return to_text(*message, *fields.back());
}

bool set_field(v1::JobSpec& spec, const std::string& path, const std::string& text) {
  const auto fields = find(path);
  if (fields.empty()) return false;
  // Sections are made on the way, which a text that is no value must not leave behind.
  v1::JobSpec changed = spec;
  Message* message = &changed;
  for (size_t i = 0; i + 1 < fields.size(); ++i) {
    message = message->GetReflection()->MutableMessage(message, fields[i]);
  }
  if (!from_text(text, *message, *fields.back())) return false;
  spec.Swap(&changed);
  return true;
}

}  // namespace tessera::spec
