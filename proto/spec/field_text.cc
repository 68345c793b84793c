#include "proto/spec/field_text.h"

#include <charconv>
#include <cstdint>

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/util/time_util.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera::spec {
namespace {

using google::protobuf::Duration;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::util::TimeUtil;

bool set_duration(const std::string& text, Message& message, const FieldDescriptor& field) {
  Duration duration;
  if (field.message_type() != Duration::descriptor() || !TimeUtil::FromString(text, &duration)) {
    return false;
  }
  message.GetReflection()->MutableMessage(&message, &field)->CopyFrom(duration);
  return true;
}

}  // namespace

std::string to_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string to_text(const Message& message, const FieldDescriptor& field) {
  if (field.is_repeated()) return "";
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return to_text(reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, &field);
    default:
      return "";
  }
}

bool from_text(const std::string& text, Message& message, const FieldDescriptor& field) {
  if (field.is_repeated()) return false;
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return false;
      reflection.SetBool(&message, &field, text == "true");
      return true;
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return false;
      reflection.SetInt32(&message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return false;
      reflection.SetInt64(&message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value)) return false;
      reflection.SetDouble(&message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      reflection.SetString(&message, &field, text);
      return true;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return set_duration(text, message, field);
    default:
      return false;
  }
}

}  // namespace tessera::spec
