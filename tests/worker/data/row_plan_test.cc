// Rows of pairs, of halves of pairs, and of prompts with other rows' completions. Rows of single
// documents, packed and not, are in token_store_test.cc.
#include "worker/data/row_plan.h"

#include <gmock/gmock.h>

#include "worker/data/packed_dataset.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A prompt of so many tokens, a completion of so many.
struct Lengths {
  int prompt, completion;
};

// Document i has tokens 100 i, 100 i + 1 ..., and the value i.
std::vector<std::unique_ptr<TokenStore>> store_of(const std::vector<Lengths>& documents,
                                                  int documents_per_record) {
  TokenStoreWriter writer;
  writer.set_documents_per_record(documents_per_record);
  for (size_t i = 0; i < documents.size(); ++i) {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> mask;
    for (int j = 0; j < documents[i].prompt + documents[i].completion; ++j) {
      tokens.push_back(static_cast<int32_t>(100 * i) + j);
      mask.push_back(j >= documents[i].prompt);
    }
    writer.append(tokens, mask, static_cast<float>(i));
  }
  writer.finish();
  std::vector<std::unique_ptr<TokenStore>> stores;
  stores.push_back(std::make_unique<TokenStore>(writer));
  return stores;
}

std::vector<int32_t> all_tokens(const Dataset& dataset) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const Row row = dataset.row(i);
    tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
  }
  return tokens;
}

// What is told without making a row is what the row holds.
void expect_counts(const Dataset& dataset) {
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const Row row = dataset.row(i);
    EXPECT_EQ(dataset.num_tokens(i), std::ssize(row.tokens));
    EXPECT_EQ(dataset.lengths(i), row.lengths);
    int64_t labels = 0;
    size_t begin = 0;
    for (const int32_t length : row.lengths) {
      for (size_t j = 1; j < static_cast<size_t>(length); ++j) labels += row.loss_mask[begin + j];
      begin += static_cast<size_t>(length);
    }
    EXPECT_EQ(dataset.num_labels(i), labels) << "row " << i;
  }
}

constexpr Truncation kDpo = {.keep_end = false, .left_out = LeftOut::kLongPrompt};
constexpr Truncation kDpoEnd = {.keep_end = true, .left_out = LeftOut::kNone};
constexpr Truncation kReward = {.keep_end = false, .left_out = LeftOut::kLonger};
constexpr Truncation kGkd = {.keep_end = true, .left_out = LeftOut::kPromptCutOff};

TEST(Pairs, AreRowsOfTwoDocumentsCutEach) {
  const std::vector<Lengths> pairs = {{2, 1}, {2, 3}, {1, 1}, {1, 1}};
  const PackedDataset start(store_of(pairs, 2), {}, {.max_length = 4, .truncation = kDpo});
  EXPECT_EQ(start.size(), 2);
  EXPECT_EQ(start.documents_per_row(), 2);
  EXPECT_TRUE(start.has_values());
  const Row row = start.row(0);
  EXPECT_THAT(row.tokens, ElementsAre(0, 1, 2, 100, 101, 102, 103));
  EXPECT_THAT(row.lengths, ElementsAre(3, 4));
  EXPECT_THAT(row.loss_mask, ElementsAre(0, 0, 1, 0, 0, 1, 1));
  EXPECT_THAT(row.values, ElementsAre(0, 1));
  expect_counts(start);
  const PackedDataset end(store_of(pairs, 2), {}, {.max_length = 2, .truncation = kDpoEnd});
  EXPECT_THAT(all_tokens(end), ElementsAre(1, 2, 103, 104, 200, 201, 300, 301));
  expect_counts(end);
}

TEST(Pairs, AreLeftOutTogether) {
  const std::vector<Lengths> pairs = {{3, 1}, {3, 1}, {2, 1}, {2, 9}, {1, 1}, {1, 2}};
  const auto first_tokens = [&](int64_t max_length, const Truncation& truncation) {
    const PackedDataset rows(store_of(pairs, 2), {},
                             {.max_length = max_length, .truncation = truncation});
    std::vector<int32_t> found;
    for (int64_t i = 0; i < rows.size(); ++i) found.push_back(rows.row(i).tokens.front());
    EXPECT_EQ(rows.num_left_out(), 3 - rows.size());
    return found;
  };
  EXPECT_THAT(first_tokens(3, kDpo), ElementsAre(200, 400));
  EXPECT_THAT(first_tokens(2, kDpo), ElementsAre(400));
  EXPECT_THAT(first_tokens(1, kDpo), IsEmpty());
  EXPECT_THAT(first_tokens(0, kDpo), ElementsAre(0, 200, 400));
  EXPECT_THAT(first_tokens(1, kDpoEnd), ElementsAre(3, 202, 401));
  EXPECT_THAT(first_tokens(4, kReward), ElementsAre(0, 400));
  EXPECT_THAT(first_tokens(11, kReward), ElementsAre(0, 200, 400));
}

TEST(Pairs, FollowTheOrderOfAMixtureByRecord) {
  const PackedDataset rows(store_of({{1, 1}, {1, 1}, {1, 2}, {1, 1}}, 2), {1, 0, 1},
                           {.max_length = 9, .truncation = kDpo});
  EXPECT_THAT(all_tokens(rows),
              ElementsAre(200, 201, 202, 300, 301, 0, 1, 100, 101, 200, 201, 202, 300, 301));
}

TEST(Documents, KeepTheirEndAsLongAsSomeOfThePromptIsLeft) {
  const PackedDataset rows(store_of({{3, 1}, {3, 2}, {1, 3}, {1, 1}}, 1), {},
                           {.max_length = 3, .truncation = kGkd});
  EXPECT_THAT(all_tokens(rows), ElementsAre(1, 2, 3, 102, 103, 104, 300, 301));
  EXPECT_EQ(rows.num_left_out(), 1);
  expect_counts(rows);
}

// As unpair_preference_dataset does, a thousand records at a time.
TEST(HalvesOfPairs, StandAThousandRecordsAtATime) {
  const int num_pairs = kPackingBatch + 2;
  const PackedDataset rows(store_of(std::vector<Lengths>(2 * num_pairs, {1, 1}), 2), {},
                           {.truncation = kDpo, .row_is_record = false});
  ASSERT_EQ(rows.size(), 2 * num_pairs);
  EXPECT_EQ(rows.documents_per_row(), 1);
  const auto document = [&](int64_t row) { return rows.row(row).values.front(); };
  EXPECT_EQ(document(0), 0);
  EXPECT_EQ(document(kPackingBatch - 1), 2 * kPackingBatch - 2);
  EXPECT_EQ(document(kPackingBatch), 1);
  EXPECT_EQ(document(2 * kPackingBatch - 1), 2 * kPackingBatch - 1);
  EXPECT_THAT((std::vector{document(2000), document(2001), document(2002), document(2003)}),
              ElementsAre(2000, 2002, 2001, 2003));
  const PackedDataset mixed(store_of({{1, 1}, {5, 1}, {1, 1}, {1, 1}}, 2), {1, 0},
                            {.max_length = 4, .truncation = kDpo, .row_is_record = false});
  EXPECT_THAT(all_tokens(mixed), ElementsAre(200, 201, 0, 1, 300, 301));
}

TEST(MismatchedRows, RotateCompletionsWithinGroups) {
  const std::vector<Lengths> documents = {{1, 1}, {2, 2}, {3, 1}, {9, 1}, {1, 4}, {2, 1}};
  const PackedDataset rows(store_of(documents, 1), {}, {.max_length = 5, .truncation = kDpo}, "key",
                           /*rotation_rows=*/3);
  ASSERT_EQ(rows.size(), 5);  // that of the long prompt is none
  const Dataset& other = *rows.mismatched();
  EXPECT_EQ(other.size(), 5);
  EXPECT_FALSE(other.has_values());
  EXPECT_NE(other.key(), rows.key());
  EXPECT_THAT(other.row(0).tokens, ElementsAre(0, 203));
  EXPECT_THAT(other.row(1).tokens, ElementsAre(100, 101, 1));
  EXPECT_THAT(other.row(2).tokens, ElementsAre(200, 201, 202, 102, 103));
  EXPECT_THAT(other.row(2).loss_mask, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(other.row(3).tokens, ElementsAre(400, 502));  // of a group of two
  EXPECT_THAT(other.row(4).tokens, ElementsAre(500, 501, 401, 402, 403));
  expect_counts(rows);
  expect_counts(other);
}

TEST(MismatchedRows, OfARowAloneAreItself) {
  const PackedDataset rows(store_of({{1, 2}}, 1), {}, {.truncation = kDpo}, "", 4);
  EXPECT_EQ(rows.mismatched()->row(0).tokens, rows.row(0).tokens);
  EXPECT_EQ(rows.mismatched()->key(), "");
}

TEST(Corpus, RefusesSourcesOfOtherRecords) {
  auto stores = store_of({{1, 1}, {1, 1}}, 2);
  stores.push_back(std::move(store_of({{1, 1}}, 1).front()));
  EXPECT_THROW(Corpus{std::move(stores)}, std::invalid_argument);
}

}  // namespace
}  // namespace tessera
