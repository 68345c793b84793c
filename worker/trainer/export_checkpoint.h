// A checkpoint as a Hugging Face directory, without training: `tessera-trainer --export`.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

struct ExportRequest {
  std::filesystem::path checkpoint;  // or a directory of which the newest is taken
  std::filesystem::path directory;
  std::filesystem::path model;  // config and tokenizer; empty: where the job had them
  std::string dtype;            // empty: the job's; of adapters float32
};

// Reads the shards of all ranks, some megabytes at a time. The bytes are those of the final
// directory that the job would have written; of a job with adapters an adapter directory, also
// where it says peft.merge_adapter. Throws UserError, std::system_error.
void export_checkpoint(const ExportRequest& request);

}  // namespace tessera
