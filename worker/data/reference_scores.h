// What a reference model makes of a dataset's documents, computed once before training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/token_cache.h"

namespace tessera {

// A float a document of a dataset whose rows have documents_per_row() each: the log-probabilities
// that the reference gives the tokens that count, summed. Dataset::mismatched() is a dataset of its
// own, with scores of its own. Immutable and thread safe.
class ReferenceScores {
 public:
  // In the order of the dataset's rows and of the documents in them.
  ReferenceScores(const Dataset& dataset, std::vector<float> scores);

  // What save() kept in the cache; null where there is nothing whole for this dataset.
  static std::shared_ptr<const ReferenceScores> find(TokenCache& cache, const std::string& key,
                                                     const Dataset& dataset);
  // Several processes may save the same at once. Throws UserError("data.cache_dir") when the disk
  // is full.
  void save(TokenCache& cache, const std::string& key) const;

  // Of the documents of a row.
  std::span<const float> of_row(int64_t row) const {
    return std::span(scores_).subspan(static_cast<size_t>(row) * documents_per_row_,
                                      documents_per_row_);
  }

 private:
  const size_t documents_per_row_;
  const std::vector<float> scores_;
};

// What scores follow from, besides the documents.
struct ReferenceModel {
  std::filesystem::path weights;     // a Hugging Face directory
  std::string field = "model.path";  // of the job file, that names it
  std::filesystem::path adapter;     // an adapter directory; empty: none
  // Whatever else: the type of the compute, how weights are stored, how tokens are weighted.
  std::string compute;
};

// The key of the scores that the model gives the dataset. Hashes of large files are remembered in
// the cache. Throws UserError where a file cannot be read. Empty where dataset.key() is.
std::string reference_key(TokenCache& cache, const Dataset& dataset, const ReferenceModel& model);

}  // namespace tessera
