#include "worker/data/row_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace tessera {

Corpus::Corpus(std::vector<std::unique_ptr<TokenStore>> stores) : stores_(std::move(stores)) {
  begins_.push_back(0);
  documents_per_record_ = stores_.front()->documents_per_record();
  for (const auto& store : stores_) {
    begins_.push_back(begins_.back() + store->size());
    has_masks_ |= store->has_masks();
    has_values_ |= store->has_values();
    if (store->documents_per_record() != documents_per_record_) {
      throw std::invalid_argument(kMixedRecords);
    }
  }
  if (size() > std::numeric_limits<uint32_t>::max()) {
    throw std::length_error("there are more than 4,294,967,295 documents");
  }
}

Corpus::Place Corpus::find(int64_t document) const {
  const auto next = std::upper_bound(begins_.begin(), begins_.end(), document);
  const auto index = static_cast<size_t>(next - begins_.begin()) - 1;
  return {*stores_[index], document - begins_[index]};
}

int64_t Corpus::length(int64_t document) const {
  const Place place = find(document);
  return place.store.length(place.document);
}

int64_t Corpus::prompt_length(int64_t document) const {
  const Place place = find(document);
  return place.store.first_counted(place.document);
}

RowPlan::RowPlan(const Corpus& corpus, std::vector<uint32_t> order, const RowPlanOptions& options)
    : corpus_(corpus),
      options_(options),
      max_row_(options.max_length > 0 ? options.max_length : std::numeric_limits<int64_t>::max()),
      documents_per_row_(options.row_is_record ? corpus.documents_per_record() : 1) {
  if (options.packing == PackingStrategy::kNone) {
    plan_unpacked(order);
  } else {
    documents_per_row_ = 0;
    plan_packed(order);
  }
}

Stretch RowPlan::kept(int64_t document) const {
  const int64_t length = corpus_.length(document);
  const int64_t beyond = std::max<int64_t>(0, length - max_row_);
  return {options_.truncation.keep_end ? beyond : 0, length - beyond};
}

bool RowPlan::is_left_out(int64_t unit) const {
  const int64_t first = unit * documents_per_row_;
  for (int64_t document = first; document < first + documents_per_row_; ++document) {
    const Stretch stretch = kept(document);
    if (stretch.length == 0) return true;
    if (options_.max_length == 0) continue;
    const auto place = corpus_.find(document);
    switch (options_.truncation.left_out) {
      case LeftOut::kNone:
        break;
      case LeftOut::kUnlabelled:
        if (place.store.count(place.document, stretch.begin, stretch.length) == 0) return true;
        break;
      case LeftOut::kLongPrompt:
        if (place.store.first_counted(place.document) >= max_row_) return true;
        break;
      case LeftOut::kLonger:
        if (place.store.length(place.document) > max_row_) return true;
        break;
      case LeftOut::kPromptCutOff:
        if (place.store.first_counted(place.document) <= stretch.begin) return true;
        break;
    }
  }
  return false;
}

void RowPlan::plan_unpacked(const std::vector<uint32_t>& order) {
  const int64_t per_record = corpus_.documents_per_record();
  const bool unpairs = documents_per_row_ != per_record;
  const auto num_records =
      order.empty() ? corpus_.size() / per_record : static_cast<int64_t>(order.size());
  bool implied = order.empty() && !unpairs;  // the corpus's own order, as long as none is left out
  const auto take = [&](int64_t unit) {
    const bool is_kept = !is_left_out(unit);
    if (!is_kept) ++num_left_out_;
    if (!is_kept && implied) {
      implied = false;
      documents_.resize(static_cast<size_t>(unit));
      std::iota(documents_.begin(), documents_.end(), 0);
    }
    if (!is_kept) return;
    if (!implied) documents_.push_back(static_cast<uint32_t>(unit));
    ++num_rows_;
  };
  const auto record = [&](int64_t i) { return order.empty() ? i : int64_t{order[i]}; };
  if (!unpairs) {
    for (int64_t i = 0; i < num_records; ++i) take(record(i));
  } else {
    for (int64_t first = 0; first < num_records; first += kPackingBatch) {
      const int64_t end = std::min(num_records, first + kPackingBatch);
      for (int64_t part = 0; part < per_record; ++part) {
        for (int64_t i = first; i < end; ++i) take(record(i) * per_record + part);
      }
    }
  }
  documents_.shrink_to_fit();
}

void RowPlan::plan_packed(const std::vector<uint32_t>& order) {
  const auto num_documents = order.empty() ? corpus_.size() : static_cast<int64_t>(order.size());
  Packer packer(max_row_, options_.packing);
  PackingPlan batch;
  std::vector<int64_t> lengths;
  row_begins_.push_back(0);
  for (int64_t first = 0; first < num_documents; first += kPackingBatch) {
    const int64_t end = std::min(num_documents, first + kPackingBatch);
    lengths.clear();
    for (int64_t i = first; i < end; ++i) {
      lengths.push_back(corpus_.length(order.empty() ? i : order[i]));
    }
    batch.segments.clear();
    batch.row_offsets.assign(1, 0);
    packer.pack(lengths, first, batch);
    append(batch, order);
  }
  documents_.shrink_to_fit();
  begins_.shrink_to_fit();
  row_begins_.shrink_to_fit();
}

void RowPlan::append(const PackingPlan& batch, const std::vector<uint32_t>& order) {
  const uint64_t first_segment = row_begins_.back();
  for (const Segment& segment : batch.segments) {
    if (segment.begin > std::numeric_limits<uint32_t>::max()) {
      throw std::length_error("a document has more than 4,294,967,295 tokens");
    }
    if (segment.begin > 0 && begins_.empty()) begins_.assign(documents_.size(), 0);
    documents_.push_back(order.empty() ? static_cast<uint32_t>(segment.document)
                                       : order[segment.document]);
    if (segment.begin > 0 || !begins_.empty()) {
      begins_.push_back(static_cast<uint32_t>(segment.begin));
    }
  }
  for (int64_t row = 1; row <= batch.num_rows(); ++row) {
    row_begins_.push_back(first_segment + static_cast<uint64_t>(batch.row_offsets[row]));
  }
  num_rows_ += batch.num_rows();
}

}  // namespace tessera
