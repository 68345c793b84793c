// `tessera profile`: how long documents are, and which max_length and packing fit them.
#pragma once

#include <cstdint>
#include <vector>

#include "client/cli/data_program.h"

namespace tessera::cli {

struct ProfileCommand {
  // Without a model the documents have to be tokens.
  DataTarget data;
  // To read of each source; 0: all.
  int64_t documents = 0;
  // Looked at beside those that the lengths suggest.
  std::vector<int32_t> max_lengths;
  // In place of the job's; 0: that.
  int32_t batch_rows = 0;
};

// Reads the documents here, with tessera-data, and starts no service; with --address, has a machine
// of that service read them.
ExitCode profile_data(const Session& session, const ProfileCommand& command);

}  // namespace tessera::cli
