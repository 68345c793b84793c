// The value of a field, as text: what a job file writes and what rules name as defaults.
#pragma once

#include <string>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

namespace tessera::spec {

// The shortest text that reads back as the same number.
std::string to_text(double value);

// "true", "512", "zero2"; of numbers as above. Empty for a list or a message.
std::string to_text(const google::protobuf::Message& message,
                    const google::protobuf::FieldDescriptor& field);

// Sets a field of a single value; of messages only durations, as "600s". False, and nothing done:
// `text` is no value of its type.
bool from_text(const std::string& text, google::protobuf::Message& message,
               const google::protobuf::FieldDescriptor& field);

}  // namespace tessera::spec
