#include "worker/model/scored_rows.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

Batch batch_of(std::vector<int64_t> cu_seqlens, int64_t num_sequences) {
  Batch batch;
  batch.documents.cu_seqlens = std::move(cu_seqlens);
  batch.num_sequences = num_sequences;
  return batch;
}

at::Tensor longs(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

TEST(ScoredRows, AreTheLastOfEachSequenceButPadding) {
  const ScoredRows rows = scored_rows(batch_of({0, 3, 4, 9, 12}, 3), at::kCPU);
  EXPECT_TRUE(rows.rows_S.equal(longs({2, 3, 8})));
  EXPECT_FALSE(rows.here_S.defined());
}

TEST(ScoredRows, AreThoseThatTheBatchNames) {
  Batch batch = batch_of({0, 3, 4, 9}, 3);
  batch.scored_tokens = {1, 3, 6};
  EXPECT_TRUE(scored_rows(batch, at::kCPU).rows_S.equal(longs({1, 3, 6})));
}

// A stream of 12 tokens in chunks of 3: rank 0 has [0, 3) and [9, 12), rank 1 the rest.
TEST(ScoredRows, AreOfOneRankOfThoseThatShareTheStream) {
  Batch batch = batch_of({0, 2, 5, 10, 12}, 4);
  batch.documents.part = StreamPart{.rank = 0, .size = 2, .chunk_tokens = 3};
  const ScoredRows first = scored_rows(batch, at::kCPU);
  EXPECT_TRUE(first.rows_S.equal(longs({1, 0, 3, 5})));
  EXPECT_TRUE(first.here_S.equal(at::tensor({1.0F, 0.0F, 1.0F, 1.0F})));
  batch.documents.part->rank = 1;
  const ScoredRows second = scored_rows(batch, at::kCPU);
  EXPECT_TRUE(second.rows_S.equal(longs({0, 1, 0, 0})));
  EXPECT_TRUE(second.here_S.equal(at::tensor({0.0F, 1.0F, 0.0F, 0.0F})));
}

TEST(ScoredRows, AreNoneWithoutSequences) {
  EXPECT_EQ(scored_rows(batch_of({0, 1}, 0), at::kCPU).rows_S.size(0), 0);
}

}  // namespace
}  // namespace tessera
