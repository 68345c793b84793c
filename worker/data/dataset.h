// Rows of tokens ready to train on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "worker/data/packing.h"

namespace tessera {

// One row: documents one after the other. Without packing a row is one document.
struct Row {
  std::vector<int32_t> tokens;
  std::vector<int32_t> lengths;  // of the documents, each 1 or more; they sum to tokens.size()
  // For each token, 1 where predicting it counts, else 0. Empty: all count. The first token of a
  // document has none before it to be predicted from, whatever its mask says.
  std::vector<uint8_t> loss_mask;
};

// Immutable and thread safe. Requires 0 <= index < size() throughout.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Row row(int64_t index) const = 0;
  // What row(index) holds, without making it. Labels: tokens that count and are not the first of
  // their document.
  virtual int64_t num_tokens(int64_t index) const = 0;
  virtual int64_t num_labels(int64_t index) const = 0;
};

struct DatasetOptions {
  std::filesystem::path path;        // JSONL
  std::string field = "data.train";  // named in errors
  std::string text_field = "text";
  std::filesystem::path tokenizer;  // directory of tokenizer.json
  std::string eos_token;            // empty: the tokenizer's own
  int64_t max_length = 1024;        // 0: no truncation
  PackingStrategy packing = PackingStrategy::kNone;
  int64_t max_documents = 0;  // read only the first ones; 0: all (a check of a job reads a sample)
  int64_t vocab_size = 0;     // of the model; ids must be below it. 0: not checked
  int num_threads = 0;  // that tokenise; 0: as many as the machine has cores. No rows depend on it.
};

// Reads, tokenises, truncates and packs as TRL's SFTTrainer does for a `text` dataset: EOS appended
// where missing, truncation to max_length from the right, then packing per thousand documents. Rows
// are in file order. Throws UserError naming file and line: not readable, no documents, not JSON,
// no such field, not a string, invalid UTF-8, no EOS token, an id the model does not have.
std::unique_ptr<Dataset> load_dataset(const DatasetOptions& options);

}  // namespace tessera
