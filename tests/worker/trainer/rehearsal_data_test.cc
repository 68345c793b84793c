// The heaviest microbatches of rows that are pairs, or that have mismatched ones, against the
// batches that a loader makes of the same rows.
#include "worker/trainer/rehearsal_data.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/worker/data/fixtures.h"
#include "worker/trainer/input.h"
#include "worker/trainer/microbatch_part.h"

namespace tessera {
namespace {

class HeaviestRows : public ::testing::Test {
 protected:
  HeaviestRows() {
    std::string lines;
    for (int i = 0; i < 7; ++i) {
      const nlohmann::json record = {{"prompt", std::string(1 + i * 3 % 5, 'p')},
                                     {"chosen", std::string(1 + i * 5 % 7, 'c')},
                                     {"rejected", std::string(1 + i * 4 % 9, 'r')},
                                     {"margin", 1}};
      lines += record.dump() + "\n";
    }
    spec_.mutable_data()->add_train(folder_.write("pairs.jsonl", lines).string());
    spec_.mutable_model()->set_tokenizer(fixture("qwen").string());
    spec_.mutable_training()->set_per_device_train_batch_size(2);
    spec_.mutable_training()->set_gradient_accumulation_steps(1);
    spec_.mutable_training()->set_max_steps(2);
    spec_.mutable_training()->set_train_sampling_strategy("sequential");
    spec_.mutable_parallelism()->set_num_processes(2);
    spec_.mutable_parallelism()->set_dp_shard_size(2);
    spec_.mutable_parallelism()->set_dp_replicate_size(1);
    spec_.mutable_parallelism()->set_cp_size(1);
    config_.vocab_size = 100'000;
  }

  // Of a batch, whatever its values.
  static void expect_same_shape(const Batch& actual, const Batch& expected) {
    EXPECT_EQ(actual.documents.cu_seqlens, expected.documents.cu_seqlens);
    EXPECT_EQ(actual.num_tokens, expected.num_tokens);
    EXPECT_EQ(actual.num_labels, expected.num_labels);
    EXPECT_EQ(actual.num_sequences, expected.num_sequences);
    EXPECT_EQ(actual.rows_of_rank, expected.rows_of_rank);
    EXPECT_EQ(actual.num_rows_of_all, expected.num_rows_of_all);
    for (const auto tensor : {&Batch::tokens_T, &Batch::labels_T, &Batch::label_rows_L,
                              &Batch::label_documents_L, &Batch::values_S}) {
      ASSERT_EQ((actual.*tensor).defined(), (expected.*tensor).defined());
      if (!(actual.*tensor).defined()) continue;
      EXPECT_EQ((actual.*tensor).sizes(), (expected.*tensor).sizes());
      EXPECT_EQ((actual.*tensor).dtype(), (expected.*tensor).dtype());
    }
    ASSERT_EQ(actual.mismatched != nullptr, expected.mismatched != nullptr);
    if (actual.mismatched != nullptr) expect_same_shape(*actual.mismatched, *expected.mismatched);
  }

  // The batch with the most tokens of the run, as trained on.
  Batch heaviest_batch() const {
    const auto rows = read_documents(spec_, false, 0, {});
    Batch heaviest;
    for (int rank = 0; rank < 2; ++rank) {
      const LoaderOptions options = loader_options(spec_, false, config_, rank, 2);
      const Loader loader(*rows, options);
      for (int64_t row = 0; row < std::min<int64_t>(rows->size(), 8); row += 4) {
        Batch batch = loader.microbatch(0, row);
        if (batch.num_tokens > heaviest.num_tokens) heaviest = std::move(batch);
      }
    }
    return heaviest;
  }

  TemporaryFolder folder_;
  v1::JobSpec spec_;
  ModelConfig config_;
};

TEST_F(HeaviestRows, ArePairs) {
  spec_.mutable_method()->mutable_dpo()->set_max_length(9);
  spec_.mutable_method()->mutable_dpo()->set_pad_to_multiple_of(16);
  RehearsalData data;
  const auto& found = data.training(spec_, config_);
  const Batch batch = found.steps.front().first.batch(at::kMeta, {});
  expect_same_shape(batch, heaviest_batch());
  EXPECT_EQ(batch.num_sequences, 4);
  EXPECT_FALSE(batch.values_S.defined());
  EXPECT_FALSE(batch.reference_logps_S.defined());
  spec_.mutable_method()->mutable_dpo()->set_precompute_ref_log_probs(true);
  EXPECT_EQ(data.training(spec_, config_)
                .steps.front()
                .first.batch(at::kMeta, {})
                .reference_logps_S.numel(),
            4);
  spec_.mutable_method()->mutable_reward();
  expect_same_shape(data.training(spec_, config_).steps.front().first.batch(at::kMeta, {}),
                    heaviest_batch());
}

// Padded, rows of 10 and of 9 tokens are as long; of the latter more is learnt, though less than of
// a shorter one.
TEST_F(HeaviestRows, ArePadded) {
  std::string lines;
  for (const auto& [length, num_labels] : {std::pair(10, 2), std::pair(9, 6), std::pair(8, 7)}) {
    std::vector<int> labels(length, -100);
    std::fill(labels.end() - num_labels, labels.end(), 1);
    const nlohmann::json record = {{"input_ids", std::vector<int>(length, 1)}, {"labels", labels}};
    lines += record.dump() + "\n";
  }
  spec_.mutable_data()->set_train(0, folder_.write("tokens.jsonl", lines).string());
  spec_.mutable_method()->mutable_sft()->set_pad_to_multiple_of(4);
  spec_.mutable_training()->set_per_device_train_batch_size(1);
  spec_.mutable_training()->set_max_steps(3);
  spec_.mutable_parallelism()->set_num_processes(1);
  spec_.mutable_parallelism()->set_dp_shard_size(1);
  RehearsalData data;
  const MicrobatchShape& heaviest = data.training(spec_, config_).steps.front().first;
  EXPECT_EQ(heaviest.num_tokens, 9);
  EXPECT_EQ(heaviest.num_labels, 6);
  EXPECT_EQ(heaviest.cu_seqlens, (std::vector<int64_t>{0, 9, 12}));
}

TEST(MostKeysOfOthers, AreOfDocumentsThatGoOnInLaterChunks) {
  // Rank 0 has the first and the last of four chunks, and sees those between.
  EXPECT_EQ(most_keys_of_others({0, 8}, 2), 4);
  EXPECT_EQ(most_keys_of_others({0, 2, 4, 6, 8}, 2), 0);
  EXPECT_EQ(most_keys_of_others({0, 3, 8}, 2), 3);
  EXPECT_EQ(most_keys_of_others({0, 8}, 1), 0);
}

TEST_F(HeaviestRows, HaveMismatchedOnes) {
  spec_.mutable_method()->mutable_kto()->set_loss_type("kto");
  RehearsalData data;
  const auto& found = data.training(spec_, config_);
  const Batch batch = found.steps.front().first.batch(at::kMeta, {});
  expect_same_shape(batch, heaviest_batch());
  EXPECT_EQ(batch.values_S.numel(), 2);
  ASSERT_NE(batch.mismatched, nullptr);
  int64_t most = 0;
  for (const HeavyStep& step : found.steps) {
    most = std::max(most, step.first.mismatched.front().num_tokens);
  }
  const auto rows = read_documents(spec_, false, 0, {});
  int64_t expected = 0;
  for (int64_t i = 0; i < 8; i += 2) {
    expected = std::max(expected,
                        rows->mismatched()->num_tokens(i) + rows->mismatched()->num_tokens(i + 1));
  }
  EXPECT_EQ(most, expected);
  spec_.mutable_method()->mutable_kto()->set_loss_type("apo_zero_unpaired");
  EXPECT_EQ(data.training(spec_, config_).steps.front().first.batch(at::kMeta, {}).mismatched,
            nullptr);
}

TEST_F(HeaviestRows, AreFullWhereNobodyKnows) {
  spec_.mutable_data()->clear_train();
  spec_.mutable_data()->add_train("/nowhere.jsonl");
  spec_.mutable_method()->mutable_kto()->set_loss_type("kto");
  spec_.mutable_method()->mutable_kto()->set_max_length(10);
  RehearsalData data;
  const Batch rows = data.training(spec_, config_).steps.front().first.batch(at::kMeta, {});
  EXPECT_EQ(rows.num_tokens, 20);
  EXPECT_EQ(rows.values_S.numel(), 2);
  ASSERT_NE(rows.mismatched, nullptr);
  EXPECT_EQ(rows.mismatched->num_tokens, 20);
  EXPECT_EQ(rows.num_rows_of_all, 4);
  spec_.mutable_method()->mutable_dpo()->set_max_length(10);
  const Batch pairs = data.training(spec_, config_).steps.front().first.batch(at::kMeta, {});
  EXPECT_EQ(pairs.num_tokens, 40);
  EXPECT_EQ(pairs.num_sequences, 4);
  EXPECT_EQ(pairs.num_labels, 36);
}

}  // namespace
}  // namespace tessera
