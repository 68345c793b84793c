#include "worker/data/loader.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>

#include <numeric>

#include "tests/worker/data/fixtures.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

// Row i has documents of the given lengths, and tokens 100 i, 100 i + 1 ...
class FakeDataset final : public Dataset {
 public:
  explicit FakeDataset(std::vector<std::vector<int32_t>> lengths) : lengths_(std::move(lengths)) {}

  int64_t size() const override { return static_cast<int64_t>(lengths_.size()); }
  Row row(int64_t index) const override {
    Row row{.tokens = std::vector<int32_t>(num_tokens(index)), .lengths = lengths_[index]};
    std::iota(row.tokens.begin(), row.tokens.end(), static_cast<int32_t>(100 * index));
    return row;
  }
  int64_t num_tokens(int64_t index) const override {
    return std::accumulate(lengths_[index].begin(), lengths_[index].end(), int64_t{0});
  }
  int64_t num_labels(int64_t index) const override {
    return num_tokens(index) - static_cast<int64_t>(lengths_[index].size());
  }

 private:
  std::vector<std::vector<int32_t>> lengths_;
};

// Pairs whose chosen document is masked but for its end, with the row's number as their values.
class FakePairs final : public Dataset {
 public:
  explicit FakePairs(int64_t size, const Dataset* mismatched = nullptr)
      : size_(size), mismatched_(mismatched) {}

  int64_t size() const override { return size_; }
  Row row(int64_t index) const override {
    const auto value = static_cast<float>(index);
    return {.tokens = {1, 2, 3, 4, 5},
            .lengths = {3, 2},
            .loss_mask = {0, 0, 1, 1, 1},
            .values = {value, value}};
  }
  int64_t num_tokens(int64_t) const override { return 5; }
  int64_t num_labels(int64_t) const override { return 2; }
  bool has_values() const override { return true; }
  int documents_per_row() const override { return 2; }
  const Dataset* mismatched() const override { return mismatched_; }

 private:
  const int64_t size_;
  const Dataset* const mismatched_;
};

std::vector<float> floats(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel()};
}

FakeDataset rows_of_one_document(int count) {
  return FakeDataset(std::vector<std::vector<int32_t>>(count, {2}));
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

// Which rows a batch of rows_of_one_document() holds.
std::vector<int64_t> rows_in(const Batch& batch) {
  std::vector<int64_t> rows;
  if (batch.num_tokens == 0) return rows;
  for (const int64_t token : values(batch.tokens_T)) {
    if (token % 100 == 0) rows.push_back(token / 100);
  }
  return rows;
}

TEST(Loader, LaysDocumentsOutFlat) {
  const FakeDataset dataset({{3, 1}, {2}});
  const Loader loader(dataset, {.batch_rows = 2, .shuffle = false});
  const Batch batch = loader.microbatch(0, 0);
  EXPECT_THAT(values(batch.tokens_T), ElementsAre(0, 1, 2, 3, 100, 101));
  EXPECT_THAT(values(batch.labels_T), ElementsAre(1, 2, -100, -100, 101, -100));
  EXPECT_THAT(values(batch.label_rows_L), ElementsAre(0, 1, 4));
  EXPECT_THAT(values(batch.documents.positions_T), ElementsAre(0, 1, 2, 0, 0, 1));
  EXPECT_THAT(batch.documents.cu_seqlens, ElementsAre(0, 3, 4, 6));
  EXPECT_EQ(batch.num_tokens, 6);
  EXPECT_EQ(batch.num_labels, 3);
}

// One row: documents of 3 and 2 tokens, of which those at 0, 2 and 4 count.
class MaskedDataset final : public Dataset {
 public:
  int64_t size() const override { return 1; }
  Row row(int64_t) const override {
    return {.tokens = {5, 6, 7, 8, 9}, .lengths = {3, 2}, .loss_mask = {1, 0, 1, 0, 1}};
  }
  int64_t num_tokens(int64_t) const override { return 5; }
  int64_t num_labels(int64_t) const override { return 2; }
};

TEST(Loader, LabelsOnlyTokensThatCount) {
  const MaskedDataset dataset;
  const Loader loader(dataset, {.batch_rows = 1, .shuffle = false});
  const Batch batch = loader.microbatch(0, 0);
  EXPECT_THAT(values(batch.tokens_T), ElementsAre(5, 6, 7, 8, 9));
  EXPECT_THAT(values(batch.labels_T), ElementsAre(-100, 7, -100, 9, -100));
  EXPECT_THAT(values(batch.label_rows_L), ElementsAre(1, 3));
  EXPECT_EQ(batch.num_labels, loader.num_labels(0, 0));
}

TEST(Loader, PadsWithOneIgnoredDocument) {
  const FakeDataset dataset({{3}, {4}});
  const Loader loader(
      dataset, {.batch_rows = 1, .shuffle = false, .pad_to_multiple_of = 4, .pad_token_id = 9});
  const Batch padded = loader.microbatch(0, 0);
  EXPECT_THAT(values(padded.tokens_T), ElementsAre(0, 1, 2, 9));
  EXPECT_THAT(values(padded.labels_T), ElementsAre(1, 2, -100, -100));
  EXPECT_THAT(padded.documents.cu_seqlens, ElementsAre(0, 3, 4));
  EXPECT_EQ(padded.num_tokens, 3);
  EXPECT_THAT(loader.microbatch(0, 1).documents.cu_seqlens, ElementsAre(0, 4));
}

TEST(Loader, ARankWithoutRowsGetsOneIgnoredToken) {
  const FakeDataset dataset = rows_of_one_document(1);
  const Loader loader(dataset, {.batch_rows = 1, .rank = 1, .world_size = 2, .shuffle = false});
  ASSERT_EQ(loader.microbatches_per_epoch(), 1);
  const Batch batch = loader.microbatch(0, 0);
  EXPECT_THAT(values(batch.labels_T), ElementsAre(-100));
  EXPECT_EQ(batch.label_rows_L.numel(), 0);
  EXPECT_THAT(batch.documents.cu_seqlens, ElementsAre(0, 1));
  EXPECT_EQ(batch.num_tokens, 0);
  EXPECT_EQ(batch.num_labels, 0);
  EXPECT_EQ(loader.num_labels(0, 0), 1);
}

TEST(Loader, OrderIsTorchsRandperm) {
  int num_orders = 0;
  for (const auto& permutation : read_json_fixture("permutations.json")) {
    const auto order = permutation["order"].get<std::vector<int64_t>>();
    const FakeDataset dataset = rows_of_one_document(static_cast<int>(order.size()));
    // The seed of an epoch is seed + epoch.
    const auto seed = permutation["seed"].get<int64_t>();
    for (const int64_t epoch : {0, 3}) {
      const Loader loader(dataset, {.batch_rows = dataset.size(), .seed = seed - epoch});
      EXPECT_THAT(rows_in(loader.microbatch(epoch, 0)), ElementsAreArray(order));
    }
    ++num_orders;
  }
  EXPECT_EQ(num_orders, 6);
}

TEST(Loader, DealsWholeBatchesInTurn) {
  const FakeDataset dataset = rows_of_one_document(11);
  LoaderOptions options{.batch_rows = 2, .world_size = 3, .shuffle = false};
  const auto rows = [&](int rank, int64_t index) {
    options.rank = rank;
    const Loader loader(dataset, options);
    return rows_in(loader.microbatch(0, index * loader.microbatch_rows()));
  };
  EXPECT_THAT(rows(0, 0), ElementsAre(0, 1));
  EXPECT_THAT(rows(2, 0), ElementsAre(4, 5));
  EXPECT_THAT(rows(1, 1), ElementsAre(8, 9));
  EXPECT_THAT(rows(2, 1), ElementsAre(10));
}

TEST(Loader, SplitsBatchesEvenlyFirstRanksTakingMore) {
  const FakeDataset dataset = rows_of_one_document(7);
  LoaderOptions options{.batch_rows = 5, .split_batches = true, .world_size = 3, .shuffle = false};
  const auto rows = [&](int rank, int64_t index) {
    options.rank = rank;
    const Loader loader(dataset, options);
    return rows_in(loader.microbatch(0, index * loader.microbatch_rows()));
  };
  EXPECT_THAT(rows(0, 0), ElementsAre(0, 1));
  EXPECT_THAT(rows(1, 0), ElementsAre(2, 3));
  EXPECT_THAT(rows(2, 0), ElementsAre(4));
  EXPECT_THAT(rows(0, 1), ElementsAre(5));
  EXPECT_THAT(rows(1, 1), ElementsAre(6));
  EXPECT_THAT(rows(2, 1), ElementsAre());
}

// However the rows are dealt, an epoch has each once, and the counts told without communication are
// the sums over ranks.
TEST(Loader, DealsEachRowOnce) {
  std::vector<std::vector<int32_t>> lengths;
  for (int i = 0; i < 23; ++i) lengths.push_back({i % 4 + 1, i % 3 + 1});
  const FakeDataset dataset(lengths);
  for (const bool split : {false, true}) {
    for (const bool drop_last : {false, true}) {
      for (const int world_size : {1, 2, 3, 4}) {
        LoaderOptions options{.batch_rows = 4,
                              .split_batches = split,
                              .world_size = world_size,
                              .drop_last = drop_last,
                              .pad_to_multiple_of = 8};
        const Loader any(dataset, options);
        const int64_t rows_a_microbatch = split ? 4 : 4 * world_size;
        EXPECT_EQ(
            any.microbatches_per_epoch(),
            drop_last ? 23 / rows_a_microbatch : (23 + rows_a_microbatch - 1) / rows_a_microbatch);
        std::vector<int> seen(23);
        for (int64_t index = 0; index < any.microbatches_per_epoch(); ++index) {
          const int64_t row = index * any.microbatch_rows();
          EXPECT_EQ(any.microbatches_from(row), any.microbatches_per_epoch() - index);
          int64_t num_tokens = 0;
          int64_t num_labels = 0;
          for (options.rank = 0; options.rank < world_size; ++options.rank) {
            const Batch batch = Loader(dataset, options).microbatch(2, row);
            EXPECT_EQ(batch.tokens_T.numel() % 8, 0);
            num_tokens += batch.num_tokens;
            num_labels += batch.num_labels;
            const auto tokens = values(batch.tokens_T);
            for (int64_t i = 0; i < batch.num_tokens; ++i)
              seen[tokens[i] / 100] += tokens[i] % 100 == 0;
          }
          EXPECT_EQ(any.num_tokens(2, row), num_tokens);
          EXPECT_EQ(any.num_labels(2, row), num_labels);
        }
        const int64_t dealt = std::accumulate(seen.begin(), seen.end(), 0);
        EXPECT_EQ(dealt, drop_last ? 23 / rows_a_microbatch * rows_a_microbatch : 23);
        EXPECT_THAT(seen, testing::Each(testing::Le(1)));
      }
    }
  }
}

// A run that goes on with another number of ranks begins where the other had come to, be that a
// border of its own microbatches or not.
TEST(Loader, GoesOnAtAnyRow) {
  const FakeDataset dataset = rows_of_one_document(29);
  const Loader before(dataset, {.batch_rows = 7, .seed = 5});
  for (const bool drop_last : {false, true}) {
    LoaderOptions options{.batch_rows = 2, .world_size = 3, .seed = 5, .drop_last = drop_last};
    std::vector<int64_t> seen = rows_in(before.microbatch(1, 0));
    for (int64_t row = 7; Loader(dataset, options).microbatches_from(row) > 0; row += 6) {
      for (options.rank = 0; options.rank < 3; ++options.rank) {
        const auto part = rows_in(Loader(dataset, options).microbatch(1, row));
        seen.insert(seen.end(), part.begin(), part.end());
      }
      options.rank = 0;
    }
    // The same order as without the change, to the end or to the last whole microbatch.
    std::vector<int64_t> order =
        rows_in(Loader(dataset, {.batch_rows = 29, .seed = 5}).microbatch(1, 0));
    if (drop_last) order.resize(25);
    EXPECT_THAT(seen, ElementsAreArray(order));
  }
}

TEST(Loader, LaysPairsOutWithTheirValues) {
  const FakePairs dataset(3);
  const Loader loader(dataset, {.batch_rows = 2, .shuffle = false, .pad_to_multiple_of = 8});
  const Batch batch = loader.microbatch(0, 0);
  EXPECT_THAT(batch.documents.cu_seqlens, ElementsAre(0, 3, 5, 8, 10, 16));
  EXPECT_EQ(batch.num_sequences, 4);
  EXPECT_THAT(values(batch.label_rows_L), ElementsAre(1, 3, 6, 8));
  EXPECT_THAT(values(batch.label_documents_L), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(floats(batch.values_S), ElementsAre(0, 0, 1, 1));
  EXPECT_FALSE(batch.reference_logps_S.defined());
  EXPECT_EQ(batch.mismatched, nullptr);
  const FakeDataset plain({{3, 1}});
  EXPECT_FALSE(Loader(plain, {}).microbatch(0, 0).values_S.defined());
  EXPECT_EQ(Loader(plain, {}).microbatch(0, 0).num_sequences, 2);
}

TEST(Loader, SaysHowManyRowsEachRankHas) {
  const FakePairs dataset(5);
  for (int rank = 0; rank < 3; ++rank) {
    const Loader loader(dataset,
                        {.batch_rows = 2, .rank = rank, .world_size = 3, .shuffle = false});
    const Batch batch = loader.microbatch(0, 0);
    EXPECT_THAT(batch.rows_of_rank, ElementsAre(2, 2, 1));
    EXPECT_EQ(batch.num_rows_of_all, 5);
    EXPECT_EQ(batch.num_sequences, 2 * batch.rows_of_rank[rank]);
  }
  const Loader last(dataset, {.batch_rows = 5, .rank = 1, .world_size = 2, .shuffle = false});
  const Batch empty = last.microbatch(0, 0);
  EXPECT_EQ(empty.num_sequences, 0);
  EXPECT_THAT(empty.rows_of_rank, ElementsAre(5, 0));
  EXPECT_EQ(empty.values_S.numel(), 0);
  EXPECT_EQ(empty.documents.num_documents(), 1);  // padding
}

TEST(Loader, BringsMismatchedRowsAndScoresAlong) {
  const FakeDataset other({{4}, {5}, {6}});
  const FakePairs dataset(3, &other);
  LoaderOptions options{.batch_rows = 2, .shuffle = false};
  options.reference =
      std::make_shared<ReferenceScores>(dataset, std::vector<float>{-1, -2, -3, -4, -5, -6});
  options.mismatched_reference =
      std::make_shared<ReferenceScores>(other, std::vector<float>{-7, -8, -9});
  const Batch batch = Loader(dataset, options).microbatch(0, 1);
  EXPECT_THAT(floats(batch.reference_logps_S), ElementsAre(-3, -4, -5, -6));
  ASSERT_NE(batch.mismatched, nullptr);
  EXPECT_EQ(batch.mismatched->num_sequences, 2);
  EXPECT_THAT(batch.mismatched->documents.cu_seqlens, ElementsAre(0, 5, 11));
  EXPECT_THAT(floats(batch.mismatched->reference_logps_S), ElementsAre(-8, -9));
  EXPECT_FALSE(batch.mismatched->values_S.defined());
  EXPECT_THAT(batch.mismatched->rows_of_rank, ElementsAre(2));
  EXPECT_EQ(batch.num_tokens, 10);  // the others' are not counted
  const Batch moved = to_device(batch, at::kMeta);
  for (const at::Tensor& tensor :
       {moved.label_documents_L, moved.values_S, moved.reference_logps_S,
        moved.mismatched->tokens_T, moved.mismatched->reference_logps_S}) {
    EXPECT_TRUE(tensor.is_meta());
  }
  EXPECT_FALSE(moved.mismatched->values_S.defined());
}

TEST(Loader, ChargesBatchesToData) {
  auto& ledger = MemoryLedger::install();
  const FakeDataset dataset(std::vector<std::vector<int32_t>>{{64}});
  const Loader loader(dataset, {.batch_rows = 1});
  const auto data = static_cast<size_t>(Owner::kData);
  const int64_t before = ledger.snapshot().current_by_owner[data];
  const Batch batch = loader.microbatch(0, 0);
  // Tokens, labels and positions, and the rows and documents of 63 labels.
  EXPECT_EQ(ledger.snapshot().current_by_owner[data] - before, (3 * 64 + 2 * 63) * 8);
}

}  // namespace
}  // namespace tessera
