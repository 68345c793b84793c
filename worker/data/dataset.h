// Rows of tokens ready to train on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/example_encoders.h"
#include "worker/data/mixture.h"
#include "worker/data/packing.h"
#include "worker/data/truncation.h"

namespace tessera {

class LiveRollouts;    // worker/data/live_rollouts.h
class RolloutDataset;  // worker/data/rollout_dataset.h

// One row: documents one after the other. Without packing a row is one document; a row of
// preferences is the chosen document and then the rejected one.
struct Row {
  std::vector<int32_t> tokens;
  std::vector<int32_t> lengths;  // of the documents, each 1 or more; they sum to tokens.size()
  // For each token, 1 where predicting it counts, else 0. Empty: all count. The first token of a
  // document has none before it to be predicted from, whatever its mask says.
  std::vector<uint8_t> loss_mask;
  std::vector<float> values;  // of the documents (Batch::values_S); empty: they have none
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
  virtual std::vector<int32_t> lengths(int64_t index) const { return row(index).lengths; }
  // Whether all rows have values, or none has.
  virtual bool has_values() const { return false; }
  // Documents of a row where all have as many, which is 1 or 2; else 0.
  virtual int documents_per_row() const { return 1; }
  // The same rows, each with the completion of another one (Batch::mismatched); null where nobody
  // asked for them.
  virtual const Dataset* mismatched() const { return nullptr; }
  // What is known of its rows where they are completions that were made for training; else null.
  virtual const RolloutDataset* rollouts() const { return nullptr; }
  // The same for datasets of the same rows: a file name. Empty: nobody knows what the rows are of.
  virtual std::string key() const { return ""; }
};

// Files, directories and patterns (see data_files.h) that are read one after the other.
struct DataSource {
  std::vector<std::filesystem::path> paths;
  std::string field = "data.train";  // of the job file, named in errors
  double weight = 1;                 // in a mixture
};

// Called while documents are made, from any thread.
struct Reports {
  std::function<void()> alive = [] {};                          // often: work goes on
  std::function<void(const std::string&)> note = [](auto&) {};  // a line for people
};

struct CacheOptions {
  std::filesystem::path directory;  // empty: documents are kept in memory
  int64_t max_bytes = 0;            // the least recently used entries go beyond it; 0: no limit
};

// Of completions that were made for training (worker/data/rollout_dataset.h).
struct RolloutOptions {
  // A row is a pair: two completions of a prompt, the better one first.
  bool pairs = false;
  int64_t generation_rows = 1;     // rows that are made at once
  int64_t num_generations = 1;     // completions of a prompt, which are all among these
  bool compares = false;           // those of a prompt, also where that is one
  int64_t num_passes = 1;          // over them, before the next ones
  bool whole_generations = false;  // what is left after the last whole one is not used
  // Each pass takes them in another order, those that numpy.random draws with this seed. Absent: in
  // that of the files.
  std::optional<uint32_t> order_seed;
  bool needs_rewards = false;
  bool zero_if_unjudged = false;  // what a completion is worth that has no reward; else NaN
  std::vector<double>
      reward_weights;                // of the rewards in the order of the first one; empty: 1 each
  std::string reward_weights_field;  // of the job file
  double truncated_penalty = 0;      // what a completion that was cut off loses of its reward
  bool masks_truncated = false;      // nothing is learnt of those
  // The sources hold prompts, whose completions are made in training, and judged by these.
  bool is_live = false;
  bool has_documents = false;  // these sources hold completions, too
  std::vector<std::string> reward_names;
  bool has_logprobs = false;          // what tokens were sampled with is of use
  int64_t max_completion_length = 0;  // in tokens
};

struct DatasetOptions {
  std::vector<DataSource> sources;         // several are a mixture
  std::optional<RolloutOptions> rollouts;  // rows are these
  StoppingStrategy stopping = StoppingStrategy::kFirstExhausted;
  uint64_t mixture_seed = 42;
  ExampleOptions examples;
  int64_t max_length = 1024;                               // 0: no truncation
  std::string max_length_field = "method.sft.max_length";  // named where it leaves nothing
  bool keep_end = false;  // DPO's: of documents that are longer. GKD always keeps their end
  PackingStrategy packing = PackingStrategy::kNone;  // SFT's
  int64_t rotation_rows = 0;  // KTO's: make mismatched() of groups of so many rows. 0: do not
  int64_t max_documents = 0;  // read only the first records of each source, cache nothing; 0: all
  int64_t vocab_size = 0;     // of the model; ids must be below it. 0: not checked
  int num_threads = 0;  // that tokenise; 0: as many as the machine has cores. No rows depend on it.
  CacheOptions cache;
  Reports reports;
};

// What max_length does to the documents of the options' kind.
Truncation truncation_of(const DatasetOptions& options);

// Reads, tokenises, masks, truncates and packs as TRL's trainers do.
//   SFT     truncation to max_length from the right, then documents of which no token counts are
//           left out (without packing, and where there is a max_length), or packing per thousand
//           documents
//   DPO     a row is a pair; pairs whose prompt fills max_length are left out, unless the end stays
//   KTO     likewise; pairs become two rows: of a thousand pairs the chosen documents come first
//   Reward  a row is a pair; pairs with a longer document are left out
//   GKD     truncation from the left; documents that keep no token of their prompt are left out
//   Rollouts  as worker/data/recorded_rollouts.h says
//   Prompts of rollouts that are live  as worker/data/live_rollouts.h says
// Rows are in the order of the files, or of the mixture. Documents stay on disk: memory does not
// grow with them but for a few bytes each. Throws UserError naming file and line, or field: not
// readable, no documents, malformed, no such field, invalid UTF-8, an id the model does not have.
std::unique_ptr<Dataset> load_dataset(const DatasetOptions& options);

// The same where options.rollouts are live.
std::unique_ptr<LiveRollouts> load_prompts(const DatasetOptions& options);

// A document before truncation.
struct DocumentLength {
  int32_t num_tokens = 0;
  // The first token that counts; num_tokens where none does.
  int32_t first_label = 0;
};

// How long the documents are that load_dataset would put in rows, in its order, those of a pair one
// after the other. Tokens are not kept, and
// the cache is not asked. Documents that are tokens already need no tokenizer: examples.tokenizer
// may be empty. Throws UserError as load_dataset does.
std::vector<DocumentLength> load_lengths(const DatasetOptions& options);

}  // namespace tessera
