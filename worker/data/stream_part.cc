#include "worker/data/stream_part.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "worker/memory/ledger.h"

namespace tessera {
namespace {

// Tokens [begin, end) of the stream that come from the batch, and how many after them are padding.
struct Stretch {
  int64_t begin, end, padding;
};

Stretch stretch_of(const StreamPart& part, int which, int64_t num_tokens) {
  const int64_t begin = part.begin(which), end = begin + part.chunk_tokens;
  const int64_t from = std::min(begin, num_tokens), to = std::min(end, num_tokens);
  return {from, to, part.chunk_tokens - (to - from)};
}

// This rank's tokens of `x_T`; `padding` makes those that are not in it.
template <typename Padding>
at::Tensor tokens_of(const at::Tensor& x_T, const StreamPart& part, const Padding& padding) {
  std::vector<at::Tensor> pieces;
  for (const int which : {0, 1}) {
    const Stretch stretch = stretch_of(part, which, x_T.size(0));
    pieces.push_back(x_T.narrow(0, stretch.begin, stretch.end - stretch.begin));
    // Chunks of padding alone begin somewhere in it.
    const int64_t first = std::max<int64_t>(0, part.begin(which) - x_T.size(0));
    if (stretch.padding > 0) pieces.push_back(padding(first, stretch.padding));
  }
  return at::cat(pieces);
}

// Labels of the stream lie in [first, last) of the list where their tokens lie in [begin, end).
struct LabelRange {
  int64_t first, last;
};

LabelRange labels_of(const at::Tensor& rows_L, int64_t begin, int64_t end) {
  const auto* rows = rows_L.const_data_ptr<int64_t>();
  const auto* last = rows + rows_L.numel();
  return {std::lower_bound(rows, last, begin) - rows, std::lower_bound(rows, last, end) - rows};
}

void take_labels(const Batch& whole, const StreamPart& part, Batch& out) {
  std::vector<at::Tensor> rows, documents, numbers;
  for (const int which : {0, 1}) {
    const int64_t begin = part.begin(which);
    const LabelRange range = labels_of(whole.label_rows_L, begin, begin + part.chunk_tokens);
    const int64_t count = range.last - range.first;
    rows.push_back(whole.label_rows_L.narrow(0, range.first, count) -
                   (begin - which * part.chunk_tokens));
    documents.push_back(whole.label_documents_L.narrow(0, range.first, count));
    if (whole.label_numbers_L.defined())
      numbers.push_back(whole.label_numbers_L.narrow(0, range.first, count));
  }
  out.label_rows_L = at::cat(rows);
  out.label_documents_L = at::cat(documents);
  if (whole.label_numbers_L.defined()) out.label_numbers_L = at::cat(numbers);
  out.num_labels = out.label_rows_L.numel();
}

}  // namespace

Batch part_of(const Batch& whole, const StreamPart& part, int64_t pad_token_id) {
  if (part.size == 1) return whole;
  TORCH_CHECK(part.rank >= 0 && part.rank < part.size && !whole.documents.part, "no part ",
              part.rank, " of ", part.size, " of this stream");
  const OwnerScope scope(Owner::kData);
  const int64_t num_tokens = whole.tokens_T.size(0);
  StreamPart own = part;
  own.chunk_tokens = (num_tokens + part.num_chunks() - 1) / part.num_chunks();
  own.padding = own.num_stream_tokens() - num_tokens;
  const auto filled = [&](int64_t value) {
    return [value, options = whole.tokens_T.options()](int64_t, int64_t count) {
      return at::full({count}, value, options);
    };
  };
  Batch out = whole;
  out.tokens_T = tokens_of(whole.tokens_T, own, filled(pad_token_id));
  out.labels_T = tokens_of(whole.labels_T, own, filled(kIgnoredLabel));
  out.documents.positions_T =
      tokens_of(whole.documents.positions_T, own, [&](int64_t first, int64_t count) {
        return at::arange(first, first + count, whole.documents.positions_T.options());
      });
  take_labels(whole, own, out);
  if (own.padding > 0) out.documents.cu_seqlens.push_back(own.num_stream_tokens());
  out.num_tokens = 0;
  for (const int which : {0, 1}) {
    const Stretch stretch = stretch_of(own, which, whole.num_tokens);
    out.num_tokens += stretch.end - stretch.begin;
  }
  out.documents.part = own;
  if (whole.mismatched != nullptr)
    out.mismatched = std::make_shared<const Batch>(part_of(*whole.mismatched, part, pad_token_id));
  return out;
}

}  // namespace tessera
