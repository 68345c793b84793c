// `tessera generate`: what a model says, token by token.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "tessera/v1/generate.pb.h"

namespace tessera::cli {

struct GenerateCommand {
  // As GenerateRequest has it, but for prompts; paths may be relative.
  v1::GenerateRequest request;
  // Empty: one, which is all of standard input.
  std::vector<std::string> prompts;
  // Prompts are what a user says, answered as the chat template has it.
  bool is_chat = false;
  // Said before. Empty: nothing.
  std::string system;
  std::filesystem::path trainer;
};

// Generates here, with tessera-trainer; with what a job has left, by the job's service. A single
// completion is printed as it is made, of several each one when it has ended; with session.json
// every reply.
ExitCode generate(const Session& session, const GenerateCommand& command);

}  // namespace tessera::cli
