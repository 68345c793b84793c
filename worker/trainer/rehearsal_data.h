// What a rehearsal knows of a job's data: how many tokens and labels each row has. It is read once
// for any number of rehearsals.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/batch.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/model/config.h"
#include "worker/trainer/judged_lengths.h"

namespace tessera {

// A rank's part of a microbatch, without its values.
struct MicrobatchShape {
  std::vector<int64_t> cu_seqlens;  // of the whole stream; padding is the last document
  int64_t num_tokens = 0;           // from the data
  int64_t num_labels = 0;
  int64_t place = 0;  // among the microbatches of its step, or of the evaluation
  // As in Batch.
  int64_t num_sequences = 0;
  std::vector<int64_t> rows_of_rank;
  bool has_completion_tokens = false;
  bool has_values = false;
  bool has_reference_logps = false;
  std::vector<MicrobatchShape> mismatched;  // one, or none
  // Where ranks of a cp axis share the stream: the part of which of how many. Before it is taken
  // (worker/trainer/microbatch_part.h) size is 1, and label_rows are as in Batch.
  int context_rank = 0;
  int context_size = 1;
  int64_t padding = 0;  // StreamPart::padding
  std::vector<int64_t> label_rows;

  // The batch on `device`, of kMeta: with tensors where a job has them, before to_device(). `share`
  // says how the stream's other parts are reached.
  Batch batch(at::Device device, const StreamPart& share) const;

  bool operator==(const MicrobatchShape&) const = default;
};

// Microbatches that no other outweighs.
struct HeavyStep {
  MicrobatchShape first;    // of those that begin a step: there are no gradients yet
  MicrobatchShape between;  // of no tokens where steps have fewer than three
  MicrobatchShape last;     // after which gradients are whole; of no tokens where steps have one

  // Of a whole step of so many microbatches.
  int64_t num_tokens(int64_t num_microbatches) const {
    return first.num_tokens + last.num_tokens +
           std::max<int64_t>(0, num_microbatches - 2) * between.num_tokens;
  }
  bool operator==(const HeavyStep&) const = default;
};

// The heaviest of a job's microbatches, over some ranks and the whole run.
struct HeaviestMicrobatches {
  int rank = 0;  // of the data-parallel ranks, that with the most tokens
  // First those with the most tokens; then, where they are others, those with the most labels,
  // those with the longest document, with the most mismatched tokens, with the most tokens and
  // labels together, and with the most keys of other ranks.
  std::vector<HeavyStep> steps;
  // Some more of other sizes, those with the most tokens first: where what operators take does not
  // grow with the size alone, one of these may take the most.
  std::vector<HeavyStep> next;
  int64_t microbatches_per_step = 1;
  int64_t total_steps = 0;
  bool assumes_full_rows = false;  // the documents could not be read
};

// Gives up reading data for a rehearsal, by throwing UserError, some seconds from now: rows are
// then taken to be full.
Reports impatient_reports(double seconds);

// Some of a job's ranks.
struct RankChoice {
  std::vector<int> data_ranks = {};  // data-parallel ones; empty: all
  // Among those that share a stream. None: the one with the most labels, as tokens are as many.
  std::optional<int> context_rank = {};
};

class RowSizes;

// Thread compatible.
class RehearsalData {
 public:
  explicit RehearsalData(Reports reports = {});
  ~RehearsalData();

  // Where the documents cannot be read (there are none, or no tokenizer), rows are taken to be
  // full: of documents of max_length tokens each, all of them labelled.
  const HeaviestMicrobatches& training(const v1::JobSpec& spec, const ModelConfig& config,
                                       const RankChoice& among = {});
  // Of the job's held-out documents: the heaviest are `first`. Requires data.eval.
  const HeaviestMicrobatches& held_out(const v1::JobSpec& spec, const ModelConfig& config,
                                       const RankChoice& among = {});

  // The training, or the held-out, documents, where they are rollouts that can be read; else null.
  const RolloutDataset* rollouts(const v1::JobSpec& spec, bool held_out, const ModelConfig& config);
  // What reward models will read of completions for the first of these; empty: not known.
  const std::vector<JudgedLengths>& judged(const v1::JobSpec& spec, bool held_out,
                                           const ModelConfig& config);

 private:
  // Null where they cannot be read.
  const RowSizes* rows_of(const v1::JobSpec& spec, bool held_out, const ModelConfig& config);
  const HeaviestMicrobatches& heaviest(const v1::JobSpec& spec, const ModelConfig& config,
                                       const RankChoice& among, bool held_out);
  HeaviestMicrobatches search_training(const v1::JobSpec& spec, const ModelConfig& config,
                                       const std::vector<int>& data_ranks);
  HeaviestMicrobatches search_held_out(const v1::JobSpec& spec, const ModelConfig& config,
                                       const std::vector<int>& data_ranks);

  Reports reports_;
  // By what they follow from.
  std::map<std::string, std::unique_ptr<RowSizes>> rows_;
  std::map<std::string, HeaviestMicrobatches> whole_;
  std::map<std::pair<std::string, std::optional<int>>, HeaviestMicrobatches> parts_;
};

}  // namespace tessera
