// tessera-data, as commands of this program run it: documents of a job file or of a path, replies
// as they come.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "client/cli/commands.h"
#include "tessera/v1/inspect.pb.h"

namespace tessera::cli {

// Which documents, and how they become tokens.
struct DataTarget {
  // A job file (.yaml, .yml, .json); anything else is data, as in data.train.
  std::string target;
  // Directory of a model: of its tokenizer, for data or in place of the job's. Empty: none.
  std::filesystem::path model;
  // The documents of data.eval.
  bool held_out = false;
  // Whose records data that is no job holds: sft, dpo, kto, reward or gkd.
  std::string method = "sft";
};

bool is_job_file(const std::filesystem::path& path);

// The job's spec, or one that names only the documents, defaults filled in and paths absolute.
// Empty, with its mistakes printed, where there is none.
std::optional<v1::JobSpec> read_data_target(const Terminal& terminal, const DataTarget& target);

// A mistake as people read it. Where no job file names the model, the flag that does is named
// instead of the field.
std::string name_flag(const v1::JobSpec& spec, const std::string& mistake);

// Hands every reply but failures to `take`; prints a failure, and what the program ended with.
ExitCode run_data_program(const Session& session, const v1::InspectRequest& request,
                          const std::function<void(const v1::InspectReply&)>& take);

}  // namespace tessera::cli
