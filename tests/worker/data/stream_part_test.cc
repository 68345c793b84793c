#include "worker/data/stream_part.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ranges>

namespace tessera {
namespace {

// Documents of these lengths, of which `padding` tokens at the end are one more; token i is 10 + i,
// and every third label is ignored.
Batch stream_of(const std::vector<int64_t>& lengths, int64_t padding = 0) {
  Batch batch;
  batch.documents.cu_seqlens = {0};
  std::vector<at::Tensor> positions;
  for (const int64_t length : lengths) {
    batch.documents.cu_seqlens.push_back(batch.documents.cu_seqlens.back() + length);
    positions.push_back(at::arange(length, at::kLong));
  }
  batch.num_tokens = batch.documents.cu_seqlens.back();
  batch.num_sequences = static_cast<int64_t>(lengths.size());
  if (padding > 0) {
    batch.documents.cu_seqlens.push_back(batch.num_tokens + padding);
    positions.push_back(at::arange(padding, at::kLong));
  }
  batch.documents.positions_T = at::cat(positions);
  const int64_t num_tokens = batch.documents.cu_seqlens.back();
  batch.tokens_T = at::arange(10, 10 + num_tokens, at::kLong);
  batch.labels_T = batch.tokens_T + 1;
  std::vector<int64_t> rows, documents;
  auto* labels = batch.labels_T.mutable_data_ptr<int64_t>();
  for (int64_t s = 0; s < batch.documents.num_documents(); ++s) {
    for (int64_t i = batch.documents.cu_seqlens[s]; i < batch.documents.cu_seqlens[s + 1]; ++i) {
      if (i % 3 == 0 || i >= batch.num_tokens) {
        labels[i] = kIgnoredLabel;
      } else {
        rows.push_back(i);
        documents.push_back(s);
      }
    }
  }
  batch.label_rows_L = at::empty({std::ssize(rows)}, at::kLong);
  batch.label_documents_L = at::empty({std::ssize(rows)}, at::kLong);
  std::ranges::copy(rows, batch.label_rows_L.mutable_data_ptr<int64_t>());
  std::ranges::copy(documents, batch.label_documents_L.mutable_data_ptr<int64_t>());
  batch.num_labels = std::ssize(rows);
  return batch;
}

// The stream again, from the chunks of all parts.
at::Tensor joined(const std::vector<Batch>& parts, at::Tensor Batch::* field) {
  std::vector<at::Tensor> chunks(2 * parts.size());
  for (const Batch& batch : parts) {
    const StreamPart& part = *batch.documents.part;
    for (const int which : {0, 1}) {
      chunks[static_cast<size_t>(part.chunk(part.rank, which))] =
          (batch.*field).narrow(0, which * part.chunk_tokens, part.chunk_tokens);
    }
  }
  return at::cat(chunks);
}

std::vector<Batch> parts_of(const Batch& whole, int size) {
  std::vector<Batch> parts;
  for (int rank = 0; rank < size; ++rank)
    parts.push_back(part_of(whole, {.rank = rank, .size = size}, /*pad_token_id=*/3));
  return parts;
}

// What is stream's comes first, and `padding` fills the rest.
void expect_padded(const at::Tensor& found, const at::Tensor& stream, int64_t padding) {
  EXPECT_TRUE(at::equal(found.narrow(0, 0, stream.size(0)), stream));
  for (int64_t i = stream.size(0); i < found.size(0); ++i)
    EXPECT_EQ(found[i].item<int64_t>(), padding);
}

const std::vector<std::vector<int64_t>> kStreams = {
    {97}, {16, 16, 16}, {5, 1, 40, 2, 2, 2, 31}, {1}, std::vector<int64_t>(50, 3)};

class StreamPartTest : public ::testing::TestWithParam<int> {};

TEST_P(StreamPartTest, PartsMakeUpTheStream) {
  const int size = GetParam();
  for (const std::vector<int64_t>& lengths : kStreams) {
    for (const int64_t padding : {0, 7}) {
      const Batch whole = stream_of(lengths, padding);
      const std::vector<Batch> parts = parts_of(whole, size);
      const StreamPart& part = *parts[0].documents.part;
      const int64_t stream = whole.tokens_T.size(0);
      EXPECT_EQ(part.num_stream_tokens() % (2 * size), 0);
      EXPECT_EQ(part.num_stream_tokens() - part.padding, stream);
      EXPECT_LT(part.padding, 2 * size);
      expect_padded(joined(parts, &Batch::tokens_T), whole.tokens_T, 3);
      expect_padded(joined(parts, &Batch::labels_T), whole.labels_T, kIgnoredLabel);
      int64_t num_tokens = 0, num_labels = 0;
      for (const Batch& batch : parts) {
        EXPECT_EQ(batch.tokens_T.size(0), 2 * part.chunk_tokens);
        EXPECT_EQ(batch.documents.cu_seqlens.back(), part.num_stream_tokens());
        EXPECT_EQ(batch.num_sequences, whole.num_sequences);
        num_tokens += batch.num_tokens;
        num_labels += batch.num_labels;
      }
      EXPECT_EQ(num_tokens, whole.num_tokens);
      EXPECT_EQ(num_labels, whole.num_labels);
    }
  }
}

TEST_P(StreamPartTest, PositionsRestartWithDocumentsWhereverTheyAreCut) {
  const int size = GetParam();
  for (const std::vector<int64_t>& lengths : kStreams) {
    const Batch whole = stream_of(lengths);
    for (const Batch& batch : parts_of(whole, size)) {
      const StreamPart& part = *batch.documents.part;
      const std::vector<int64_t>& cu = batch.documents.cu_seqlens;
      for (int64_t i = 0; i < batch.tokens_T.size(0); ++i) {
        const int which = i < part.chunk_tokens ? 0 : 1;
        const int64_t place = part.begin(which) + i - which * part.chunk_tokens;
        const auto document = std::ranges::upper_bound(cu, place) - 1;
        EXPECT_EQ(batch.documents.positions_T[i].item<int64_t>(), place - *document);
      }
    }
  }
}

TEST_P(StreamPartTest, LabelsAreThoseOfThePartsTokens) {
  const int size = GetParam();
  for (const std::vector<int64_t>& lengths : kStreams) {
    const Batch whole = stream_of(lengths);
    for (const Batch& batch : parts_of(whole, size)) {
      ASSERT_EQ(batch.label_rows_L.size(0), batch.num_labels);
      EXPECT_EQ((batch.labels_T != kIgnoredLabel).sum().item<int64_t>(), batch.num_labels);
      for (int64_t l = 0; l < batch.num_labels; ++l) {
        const int64_t row = batch.label_rows_L[l].item<int64_t>();
        const int64_t place = batch.tokens_T[row].item<int64_t>() - 10;  // in the stream
        EXPECT_EQ(batch.labels_T[row].item<int64_t>(), whole.labels_T[place].item<int64_t>());
        const int64_t document = batch.label_documents_L[l].item<int64_t>();
        EXPECT_LE(whole.documents.cu_seqlens[document], place);
        EXPECT_LT(place, whole.documents.cu_seqlens[document + 1]);
        if (l > 0) EXPECT_GT(row, batch.label_rows_L[l - 1].item<int64_t>());
      }
    }
  }
}

// A rank's front and back chunk together have as many tokens before them as any other rank's.
TEST_P(StreamPartTest, RanksHaveAsMuchToAttendTo) {
  const int size = GetParam();
  for (int rank = 0; rank < size; ++rank) {
    const StreamPart part{.rank = rank, .size = size, .chunk_tokens = 5};
    EXPECT_EQ(part.begin(0) + part.begin(1), (2 * size - 1) * 5);
  }
}

TEST_P(StreamPartTest, TheBatchBesideItIsSplitToo) {
  Batch whole = stream_of({9, 4});
  whole.mismatched = std::make_shared<const Batch>(stream_of({3, 30}));
  const std::vector<Batch> parts = parts_of(whole, GetParam());
  std::vector<Batch> beside;
  for (const Batch& batch : parts) beside.push_back(*batch.mismatched);
  expect_padded(joined(beside, &Batch::tokens_T), whole.mismatched->tokens_T, 3);
}

INSTANTIATE_TEST_SUITE_P(Sizes, StreamPartTest, ::testing::Values(2, 3, 4, 8));

TEST(StreamPart, OfOneIsTheBatch) {
  const Batch whole = stream_of({5, 6});
  const Batch same = part_of(whole, {.rank = 0, .size = 1}, 0);
  EXPECT_TRUE(same.tokens_T.is_same(whole.tokens_T));
  EXPECT_FALSE(same.documents.part);
}

}  // namespace
}  // namespace tessera
