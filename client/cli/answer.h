// Programs of this service that answer one question and end.
#pragma once

#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/message.h>

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera::cli {

struct AnsweringProgram {
  std::filesystem::path program;
  std::vector<std::string> arguments = {};
};

// Runs the program with `question` on its standard input, and hands its standard output to `read`,
// which reads it to the end. A stop request ends the program. Its failure, where it ended with one.
absl::Status run_for_answer(
    const AnsweringProgram& program, const google::protobuf::Message& question,
    const std::stop_token& stop,
    const std::function<void(google::protobuf::io::ZeroCopyInputStream&)>& read);

}  // namespace tessera::cli
