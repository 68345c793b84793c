#include "worker/data/reference_scores.h"

#include <algorithm>
#include <stdexcept>

#include "worker/data/content_hash.h"

namespace tessera {
namespace {

// Changes when scores mean something else.
constexpr const char* kVersion = "reference scores 1";

// Files that a model's outputs depend on, in a fixed order.
std::vector<std::filesystem::path> model_files(const std::filesystem::path& directory,
                                               const std::string& field) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; it != end && !error;
       it.increment(error)) {
    const auto extension = it->path().extension();
    if (extension == ".safetensors" || extension == ".json") files.push_back(it->path());
  }
  if (error) throw UserError(field, directory.string() + " cannot be read: " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

// In the cache, scores are the values of documents without tokens: entries of one kind, which are
// checked and evicted alike.
std::shared_ptr<const ReferenceScores> ReferenceScores::find(TokenCache& cache,
                                                             const std::string& key,
                                                             const Dataset& dataset) {
  const auto store = cache.find(key);
  const int64_t size = dataset.size() * dataset.documents_per_row();
  if (store == nullptr || store->size() != size || !store->has_values()) return nullptr;
  std::vector<float> scores(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) scores[static_cast<size_t>(i)] = store->value(i);
  return std::make_shared<ReferenceScores>(dataset, std::move(scores));
}

ReferenceScores::ReferenceScores(const Dataset& dataset, std::vector<float> scores)
    : documents_per_row_(static_cast<size_t>(dataset.documents_per_row())),
      scores_(std::move(scores)) {
  const auto num_rows = static_cast<size_t>(dataset.size());
  if (documents_per_row_ == 0 || scores_.size() != num_rows * documents_per_row_) {
    throw std::logic_error("there are " + std::to_string(scores_.size()) + " scores for " +
                           std::to_string(num_rows) + " rows of " +
                           std::to_string(documents_per_row_) + " documents");
  }
}

void ReferenceScores::save(TokenCache& cache, const std::string& key) const {
  cache.get(key, [&](TokenStoreWriter& writer) {
    for (const float score : scores_) writer.append({}, {}, score);
  });
}

std::string reference_key(TokenCache& cache, const Dataset& dataset, const ReferenceModel& model) {
  const std::string rows = dataset.key();
  if (rows.empty()) return "";
  ContentHash key;
  key.add(kVersion);
  key.add(rows);
  key.add(model.compute);
  for (const auto& [directory, field] :
       {std::pair(model.weights, model.field),
        std::pair(model.adapter, std::string("peft.adapter_path"))}) {
    if (directory.empty()) {
      key.add("");
      continue;
    }
    for (const auto& file : model_files(directory, field)) {
      key.add(file.filename().string());
      key.add(cache.content_hash({file, field}));
    }
  }
  return key.hex();
}

}  // namespace tessera
