// What a rehearsal knows of a job's data: how many tokens and labels each row has. It is read once
// for any number of rehearsals.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/batch.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/model/config.h"

namespace tessera {

// A rank's part of a microbatch, without its values.
struct MicrobatchShape {
  std::vector<int64_t> cu_seqlens;  // padding is the last document
  int64_t num_tokens = 0;           // from the data
  int64_t num_labels = 0;
  int64_t place = 0;  // among the microbatches of its step, or of the evaluation

  // The batch on `device`, of kMeta: with tensors where a job has them, before to_device().
  Batch batch(at::Device device) const;

  bool operator==(const MicrobatchShape&) const = default;
};

// Microbatches that no other outweighs.
struct HeavyStep {
  MicrobatchShape first;  // of those that begin a step: there are no gradients yet
  MicrobatchShape later;  // of the others; of no tokens where steps have one microbatch

  bool operator==(const HeavyStep&) const = default;
};

// The heaviest of a job's microbatches, over all ranks and the whole run.
struct HeaviestMicrobatches {
  int rank = 0;  // that has the most tokens
  // First those with the most tokens; then, where they are others, those with the most labels, and
  // those with the longest document.
  std::vector<HeavyStep> steps;
  int64_t microbatches_per_step = 1;
  int64_t total_steps = 0;
};

class RowSizes;

// Thread compatible.
class RehearsalData {
 public:
  explicit RehearsalData(Reports reports = {});
  ~RehearsalData();

  // Where the documents cannot be read (there are none, or no tokenizer), rows are taken to be
  // full: one document of max_length tokens each, all of them labelled.
  const HeaviestMicrobatches& training(const v1::JobSpec& spec, const ModelConfig& config);
  // Of the job's held-out documents: the heaviest are `first`. Requires data.eval.
  const HeaviestMicrobatches& held_out(const v1::JobSpec& spec, const ModelConfig& config);

 private:
  // Null where they cannot be read.
  const RowSizes* rows_of(const v1::JobSpec& spec, bool held_out, const ModelConfig& config);
  HeaviestMicrobatches search_training(const v1::JobSpec& spec, const ModelConfig& config);
  HeaviestMicrobatches search_held_out(const v1::JobSpec& spec, const ModelConfig& config);

  Reports reports_;
  // By what they follow from.
  std::map<std::string, std::unique_ptr<RowSizes>> rows_;
  std::map<std::string, HeaviestMicrobatches> heaviest_;
};

}  // namespace tessera
