// Rows of tokens ready to train on, and the deal of them to ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "worker/batch.h"

namespace tessera {

// One row: documents one after the other. Without packing a row is one document.
struct Row {
  std::vector<int32_t> tokens;
  std::vector<int32_t> lengths;  // of the documents; they sum to tokens.size()
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Requires 0 <= index < size(). Thread safe.
  virtual Row row(int64_t index) const = 0;
};

enum class PackingStrategy { kNone, kBfd, kBfdSplit, kWrapped };

struct DatasetOptions {
  std::filesystem::path path;       // JSONL
  std::string field = "data.train";  // named in errors
  std::string text_field = "text";
  std::filesystem::path tokenizer;  // directory of tokenizer.json
  std::string eos_token;            // empty: the tokenizer's own
  int64_t max_length = 1024;        // 0: no truncation
  PackingStrategy packing = PackingStrategy::kNone;
  int64_t max_documents = 0;  // read only the first ones; 0: all (a check of a job reads a sample)
  int64_t vocab_size = 0;     // of the model; ids must be below it. 0: not checked
};

// Reads, tokenises, truncates and packs as TRL's SFTTrainer does for a `text` dataset: EOS appended where
// missing, truncation to max_length from the right, then packing per thousand documents.
// Throws UserError naming file and line: not readable, no documents, not JSON, no such field, not a string,
// invalid UTF-8, no EOS token.
std::unique_ptr<Dataset> load_dataset(const DatasetOptions& options);

struct LoaderOptions {
  int64_t batch_rows = 8;  // a rank's rows in a microbatch; with split_batches, those of all ranks
  bool split_batches = false;
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;  // else file order
  int64_t seed = 42;
  bool drop_last = false;
  int64_t pad_to_multiple_of = 0;
};

// Deals rows to ranks. It has no state: a microbatch is addressed by (epoch, index), which is the whole
// cursor of a resumed run. The order of an epoch is that of accelerate's SeedableRandomSampler:
// torch.randperm from a generator seeded with seed + epoch. Rows that do not fill the last microbatch
// evenly are dealt out once, never repeated; ranks left without rows get an empty (padded) batch.
class Loader {
 public:
  Loader(const Dataset& dataset, const LoaderOptions& options);

  int64_t microbatches_per_epoch() const;
  // This rank's part. Requires index < microbatches_per_epoch().
  Batch microbatch(int64_t epoch, int64_t index) const;
  // Labels in the whole microbatch, over all ranks; needs no communication.
  int64_t num_labels(int64_t epoch, int64_t index) const;
  // Tokens in the whole microbatch, over all ranks, padding not counted.
  int64_t num_tokens(int64_t epoch, int64_t index) const;

 private:
  struct Epoch;
  // ... the helper who writes it defines the members
};

}  // namespace tessera
