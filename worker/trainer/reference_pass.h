// Scores a job's documents with the reference before training, so that it need not stay in memory.
// What was computed once for the same documents and weights is found in the data cache.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/loader.h"
#include "worker/data/reference_scores.h"
#include "worker/data/token_cache.h"
#include "worker/trainer/frozen.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/stream_share.h"

namespace tessera {

// Scores of a dataset, and of Dataset::mismatched().
struct DatasetScores {
  std::shared_ptr<const ReferenceScores> rows, mismatched;
};

// How rows are dealt for the pass: in file order, precompute_ref_batch_size of them a rank.
LoaderOptions scoring_loader_options(const v1::JobSpec& spec, bool held_out,
                                     const ModelConfig& config, int rank, int world_size);
// Log-probabilities of the documents of all ranks' rows of a batch, in their order, as the loss
// takes them: float64 [rows of all, documents of a row]. Collective.
at::Tensor score_rows(const v1::JobSpec& spec, DecoderModel& reference, const Batch& batch,
                      Collectives& data);

class ReferencePass {
 public:
  // The job's method precomputes scores. All outlive this.
  ReferencePass(const v1::JobSpec& spec, const ModelConfig& config, const Mesh& mesh,
                const StreamShare& share, at::Device device, Reporter& reporter);

  // Looks in the cache for what the dataset needs, which outlives this. Collective: it is there
  // when every rank has found it.
  void find(const Dataset& dataset, bool held_out);
  bool has_all() const;
  // Computes what was not found, with the reference or the policy as it begins, and keeps it in the
  // cache. Collective. Throws UserError (a full disk).
  void compute(TrainableModel& reference);

  // Requires has_all() or compute().
  DatasetScores of(const Dataset& dataset) const;

 private:
  // A dataset of documents, and its scores.
  struct Scored {
    const Dataset* dataset;
    std::string key;  // in the cache; empty: not kept there
    std::shared_ptr<const ReferenceScores> scores;
    std::vector<float> computed;
  };
  struct Entry {
    const Dataset* dataset;
    bool held_out;
    Scored rows;
    std::optional<Scored> mismatched;
  };

  Scored look_up(const Dataset& dataset);
  void compute(Entry& entry, TrainableModel& reference);
  void keep(Scored& scored);

  const v1::JobSpec& spec_;
  const ModelConfig& config_;
  const Mesh& mesh_;
  const StreamShare& share_;
  const at::Device device_;
  Reporter& reporter_;
  std::optional<TokenCache> cache_;
  std::vector<Entry> entries_;
};

}  // namespace tessera
