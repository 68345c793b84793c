// `tessera data inspect`: what a model will see of documents.
#pragma once

#include <cstdint>

#include "client/cli/data_program.h"

namespace tessera::cli {

struct InspectOptions {
  DataTarget data;
  // To read of each source; 0: all.
  int64_t documents = 1000;
  int64_t first_row = 0;
  int64_t rows = 4;
};

// Starts no service and no job: reads the documents here, with tessera-data.
ExitCode inspect_data(const Session& session, const InspectOptions& options);

}  // namespace tessera::cli
