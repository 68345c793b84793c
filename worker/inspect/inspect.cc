#include "worker/inspect/inspect.h"

#include <algorithm>
#include <mutex>

#include "worker/data/dataset.h"
#include "worker/data/job_data.h"
#include "worker/data/tokenizer.h"
#include "worker/inspect/token_texts.h"

namespace tessera {
namespace {

using Reply = std::function<void(const v1::InspectReply&)>;

std::unique_ptr<Dataset> load(const v1::InspectRequest& request, const Reply& reply) {
  DatasetOptions options = dataset_options(request.spec(), request.held_out(), /*vocab_size=*/0);
  options.max_documents = request.max_documents();
  options.cache.directory.clear();  // it may be of another machine or user
  std::mutex mutex;
  options.reports.note = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    v1::InspectReply message;
    message.set_note(line);
    reply(message);
  };
  return load_dataset(options);
}

v1::InspectedData count(const Dataset& dataset) {
  v1::InspectedData data;
  data.set_num_rows(dataset.size());
  for (int64_t i = 0; i < dataset.size(); ++i) {
    data.set_num_documents(data.num_documents() +
                           static_cast<int64_t>(dataset.row(i).lengths.size()));
    data.set_num_tokens(data.num_tokens() + dataset.num_tokens(i));
    data.set_num_labels(data.num_labels() + dataset.num_labels(i));
  }
  return data;
}

v1::InspectedRow show(const Row& row, const Tokenizer& tokenizer) {
  v1::InspectedRow shown;
  size_t begin = 0;
  for (const int32_t length : row.lengths) {
    v1::InspectedDocument& document = *shown.add_documents();
    const auto ids = std::span(row.tokens).subspan(begin, static_cast<size_t>(length));
    for (std::string& text : token_texts(tokenizer, ids)) document.add_texts(std::move(text));
    for (size_t i = 0; i < ids.size(); ++i) {
      document.add_ids(ids[i]);
      // Nothing predicts the first token of a document.
      document.add_labels(i > 0 && (row.loss_mask.empty() || row.loss_mask[begin + i] != 0));
    }
    begin += ids.size();
  }
  return shown;
}

}  // namespace

void inspect(const v1::InspectRequest& request, const Reply& reply) {
  const auto dataset = load(request, reply);
  v1::InspectReply message;
  *message.mutable_data() = count(*dataset);
  message.mutable_data()->set_max_documents(request.max_documents());
  reply(message);
  const Tokenizer tokenizer(tokenizer_directory(request.spec()));
  const int64_t begin = std::clamp<int64_t>(request.first_row(), 0, dataset->size());
  const int64_t end = begin + std::clamp<int64_t>(request.num_rows(), 0, dataset->size() - begin);
  for (int64_t i = begin; i < end; ++i) {
    *message.mutable_row() = show(dataset->row(i), tokenizer);
    message.mutable_row()->set_index(i);
    reply(message);
  }
}

}  // namespace tessera
