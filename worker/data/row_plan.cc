#include "worker/data/row_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace tessera {

Corpus::Corpus(std::vector<std::unique_ptr<TokenStore>> stores) : stores_(std::move(stores)) {
  begins_.push_back(0);
  for (const auto& store : stores_) {
    begins_.push_back(begins_.back() + store->size());
    has_masks_ |= store->has_masks();
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

RowPlan::RowPlan(const Corpus& corpus, std::vector<uint32_t> order, const RowPlanOptions& options)
    : corpus_(corpus),
      max_row_(options.max_length > 0 ? options.max_length : std::numeric_limits<int64_t>::max()) {
  if (options.packing == PackingStrategy::kNone) {
    plan_single(std::move(order), options.max_length > 0 && corpus.has_masks());
  } else {
    plan_packed(order, options.packing);
  }
}

void RowPlan::plan_single(std::vector<uint32_t> order, bool drops_masked) {
  const auto num_documents = order.empty() ? corpus_.size() : static_cast<int64_t>(order.size());
  const auto is_kept = [&](int64_t document) {
    const Corpus::Place place = corpus_.find(document);
    const int64_t length = std::min(max_row_, place.store.length(place.document));
    return length > 0 && (!drops_masked || place.store.count(place.document, 0, length) > 0);
  };
  bool implied = order.empty();  // the corpus's own order, as long as no document is left out
  for (int64_t i = 0; i < num_documents; ++i) {
    const int64_t document = order.empty() ? i : order[i];
    const bool kept = is_kept(document);
    if (!kept && implied) {
      implied = false;
      documents_.resize(static_cast<size_t>(i));
      std::iota(documents_.begin(), documents_.end(), 0);
    }
    if (!kept) continue;
    if (!implied) documents_.push_back(static_cast<uint32_t>(document));
    ++num_rows_;
  }
  documents_.shrink_to_fit();
}

void RowPlan::plan_packed(const std::vector<uint32_t>& order, PackingStrategy packing) {
  const auto num_documents = order.empty() ? corpus_.size() : static_cast<int64_t>(order.size());
  Packer packer(max_row_, packing);
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
