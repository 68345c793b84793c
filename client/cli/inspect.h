// `tessera data inspect`: what a model will see of documents.
#pragma once

#include <cstdint>
#include <filesystem>

#include "client/cli/commands.h"

namespace tessera::cli {

struct InspectOptions {
  // A job file (.yaml, .yml, .json); anything else is data, as in data.train.
  std::string target;
  // Of data; in place of a job's own. Empty: none.
  std::filesystem::path tokenizer;
  // The documents of data.eval.
  bool held_out = false;
  // To read of each source; 0: all.
  int64_t documents = 1000;
  int64_t first_row = 0;
  int64_t rows = 4;
};

// Starts no service and no job: reads the documents here, with tessera-data.
ExitCode inspect_data(const Session& session, const InspectOptions& options);

}  // namespace tessera::cli
