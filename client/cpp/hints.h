// What to say about a name that a job file may not use where it stands.
#pragma once

#include <string>

#include <google/protobuf/descriptor.h>

namespace tessera {

// A sentence on `name`, which is no field of the message at `path` ("training"; empty: the top of
// the file): where it belongs, what takes its place here, or the field that was meant.
std::string explain_unknown_field(const google::protobuf::Descriptor& message,
                                  const std::string& path, const std::string& name);

}  // namespace tessera
