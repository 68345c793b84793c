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

v1::InspectedDocument show_document(std::span<const int32_t> ids, std::span<const uint8_t> mask,
                                    const Tokenizer& tokenizer) {
  v1::InspectedDocument shown;
  for (std::string& text : token_texts(tokenizer, ids)) shown.add_texts(std::move(text));
  for (size_t i = 0; i < ids.size(); ++i) {
    shown.add_ids(ids[i]);
    // Nothing predicts the first token of a document.
    shown.add_labels(i > 0 && (mask.empty() || mask[i] != 0));
  }
  return shown;
}

// Rows as the job's method sees them.
class RowView {
 public:
  RowView(const Dataset& dataset, const v1::Method& method)
      : dataset_(dataset),
        is_kto_(method.has_kto()),
        is_reward_(method.has_reward()),
        is_pair_(method.has_dpo() || method.has_reward() || method.has_online_dpo()) {}

  v1::InspectedData count() const {
    v1::InspectedData data;
    data.set_num_rows(dataset_.size());
    for (int64_t i = 0; i < dataset_.size(); ++i) {
      const auto num_documents = std::ssize(dataset_.lengths(i));
      data.set_num_documents(data.num_documents() + num_documents);
      data.set_num_tokens(data.num_tokens() + dataset_.num_tokens(i));
      data.set_num_labels(data.num_labels() +
                          (is_reward_ ? num_documents : dataset_.num_labels(i)));
    }
    return data;
  }

  v1::InspectedRow show(int64_t index, const Tokenizer& tokenizer) const {
    v1::InspectedRow shown;
    shown.set_index(index);
    const Row row = dataset_.row(index);
    size_t begin = 0;
    for (size_t i = 0; i < row.lengths.size(); ++i) {
      const auto length = static_cast<size_t>(row.lengths[i]);
      const auto mask = std::span(row.loss_mask).subspan(row.loss_mask.empty() ? 0 : begin);
      v1::InspectedDocument& document = *shown.add_documents();
      document = show_document(std::span(row.tokens).subspan(begin, length), mask, tokenizer);
      describe(row, i, document);
      begin += length;
    }
    if (const Dataset* mismatched = dataset_.mismatched()) {
      const Row other = mismatched->row(index);
      *shown.mutable_mismatched() = show_document(other.tokens, other.loss_mask, tokenizer);
    }
    return shown;
  }

 private:
  void describe(const Row& row, size_t i, v1::InspectedDocument& document) const {
    if (is_pair_) document.set_role(i == 0 ? "chosen" : "rejected");
    if (is_kto_) document.set_role(row.values[i] != 0 ? "desirable" : "undesirable");
    if (!is_reward_) return;
    if (!row.values.empty()) document.set_margin(row.values[i]);
    const int last = document.labels_size() - 1;
    for (int token = 0; token <= last; ++token) document.set_labels(token, token == last);
  }

  const Dataset& dataset_;
  const bool is_kto_, is_reward_, is_pair_;
};

}  // namespace

void inspect(const v1::InspectRequest& request, const Reply& reply) {
  const auto dataset = load(request, reply);
  v1::InspectReply message;
  const RowView view(*dataset, request.spec().method());
  *message.mutable_data() = view.count();
  message.mutable_data()->set_max_documents(request.max_documents());
  reply(message);
  const Tokenizer tokenizer(tokenizer_directory(request.spec()));
  const int64_t begin = std::clamp<int64_t>(request.first_row(), 0, dataset->size());
  const int64_t end = begin + std::clamp<int64_t>(request.num_rows(), 0, dataset->size() - begin);
  for (int64_t i = begin; i < end; ++i) {
    *message.mutable_row() = view.show(i, tokenizer);
    reply(message);
  }
}

}  // namespace tessera
