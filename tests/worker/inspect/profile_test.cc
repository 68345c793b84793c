#include "worker/inspect/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/data/fixtures.h"
#include "worker/data/packing.h"
#include "worker/errors.h"
#include "worker/inspect/inspect.h"
#include "worker/inspect/length_table.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<DocumentLength> documents_of(const std::vector<int32_t>& lengths) {
  std::vector<DocumentLength> documents;
  for (const int32_t length : lengths) documents.push_back({length, 0});
  return documents;
}

v1::LengthChoice choice_of(const std::vector<DocumentLength>& documents, int32_t max_length,
                           int32_t batch_rows) {
  return make_length_table(
             documents, {.max_lengths = {max_length}, .batch_rows = batch_rows, .num_threads = 2})
      .front();
}

int64_t num_lost(const std::vector<DocumentLength>& documents, LeftOut left_out) {
  const v1::LengthChoice choice =
      make_length_table(documents,
                        {.max_lengths = {8}, .truncation = {.left_out = left_out}, .packs = false})
          .front();
  EXPECT_TRUE(choice.packed().empty());
  return choice.num_lost_documents();
}

TEST(LengthTable, CountsWhatEachMethodLeavesOut) {
  const std::vector<DocumentLength> documents = {{3, 1}, {9, 8}, {9, 7}, {10, 2}, {10, 3}};
  EXPECT_EQ(num_lost(documents, LeftOut::kLongPrompt), 1);
  EXPECT_EQ(num_lost(documents, LeftOut::kLonger), 4);
  EXPECT_EQ(num_lost(documents, LeftOut::kPromptCutOff), 1);
  EXPECT_EQ(num_lost(documents, LeftOut::kNone), 0);
}

TEST(LengthTable, CountsWhatTruncationCosts) {
  const std::vector<DocumentLength> documents = {{3, 0}, {10, 9}, {10, 2}, {25, 25}, {0, 0}};
  const v1::LengthChoice choice = choice_of(documents, 8, 1);
  EXPECT_EQ(choice.num_truncated_documents(), 3);
  EXPECT_EQ(choice.num_truncated_tokens(), 2 + 2 + 17);
  // Cut before the first token that counts; none counts at all; empty.
  EXPECT_EQ(choice.num_lost_documents(), 3);
  EXPECT_EQ(choice.num_padding_tokens(), 0);
  EXPECT_EQ(choice.max_microbatch_tokens(), 8);
  EXPECT_EQ(choice.mean_microbatch_tokens(), (3 + 8 + 8 + 8) / 4);
}

TEST(LengthTable, PadsABatchToItsLongest) {
  // Whatever the order, a batch of all four is padded to 8.
  const v1::LengthChoice choice = choice_of(documents_of({1, 2, 8, 30}), 8, 4);
  EXPECT_EQ(choice.num_padding_tokens(), 7 + 6);
  EXPECT_EQ(choice.max_microbatch_tokens(), 19);
}

TEST(LengthTable, PacksAsTrainingDoes) {
  std::vector<int32_t> lengths(2500);
  for (size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = static_cast<int32_t>(1 + i * i % 97);
  }
  const v1::LengthChoice choice = choice_of(documents_of(lengths), 64, 4);
  const std::vector<int64_t> wide(lengths.begin(), lengths.end());
  const PackingStrategy strategies[] = {PackingStrategy::kBfd, PackingStrategy::kBfdSplit,
                                        PackingStrategy::kWrapped};
  ASSERT_EQ(choice.packed_size(), 3);
  for (int i = 0; i < 3; ++i) {
    const PackingPlan plan = plan_packing(wide, 64, strategies[i]);
    int64_t num_tokens = 0;
    for (const Segment& segment : plan.segments) num_tokens += segment.length;
    EXPECT_EQ(choice.packed(i).num_rows(), plan.num_rows()) << choice.packed(i).strategy();
    EXPECT_EQ(choice.packed(i).num_tokens(), num_tokens) << choice.packed(i).strategy();
  }
  EXPECT_EQ(choice.packed(0).num_split_documents(), 0);
  EXPECT_EQ(choice.packed(1).num_split_documents(), choice.num_truncated_documents());
  EXPECT_EQ(choice.packed(1).num_tokens(), std::accumulate(wide.begin(), wide.end(), int64_t{0}));
}

TEST(LengthTable, ThrowsWhatATaskThrows) {
  const std::vector<DocumentLength> documents(4, {.num_tokens = 3, .first_label = 0});
  const LengthTableOptions none = {.max_lengths = std::vector<int32_t>(8, 0), .num_threads = 4};
  EXPECT_THROW(make_length_table(documents, none), std::invalid_argument);
}

TEST(Profile, CountsEveryDocumentInItsBin) {
  std::vector<int32_t> lengths(5000);
  std::iota(lengths.begin(), lengths.end(), 0);
  const v1::DataProfile profile = profile_lengths(documents_of(lengths), {});
  EXPECT_EQ(profile.num_documents(), 5000);
  int64_t next = 0, num_tokens = 0;
  for (const v1::LengthBin& bin : profile.bins()) {
    EXPECT_EQ(bin.begin(), next);
    EXPECT_EQ(bin.num_documents(), std::min<int64_t>(bin.end(), 5000) - bin.begin());
    next = bin.end();
    num_tokens += bin.num_tokens();
  }
  EXPECT_GE(next, 5000);
  EXPECT_EQ(num_tokens, profile.num_tokens());
  EXPECT_EQ(profile.quantiles(0).num_tokens(), 0);
  EXPECT_EQ(profile.quantiles(3).num_tokens(), 2499);
  EXPECT_EQ(profile.quantiles(8).num_tokens(), 4999);
}

TEST(Profile, ShowsNarrowDistributionsFinely) {
  const v1::DataProfile profile = profile_lengths(documents_of({512, 600, 767}), {});
  EXPECT_GE(profile.bins_size(), 8);
  EXPECT_EQ(profile.bins(0).begin(), 512);
}

TEST(Profile, LooksAtGivenLengthsToo) {
  const v1::DataProfile profile =
      profile_lengths(documents_of({100, 200}), {.max_lengths = {77}, .job_max_length = 150});
  EXPECT_EQ(profile.choices(0).max_length(), 77);
  EXPECT_FALSE(profile.choices(0).is_of_job());
  int of_job = 0;
  for (const v1::LengthChoice& choice : profile.choices()) of_job += choice.is_of_job();
  EXPECT_EQ(of_job, 1);
}

TEST(Advice, PacksShortDocumentsWhole) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 3000; ++i) lengths.push_back(20 + i % 180);
  const v1::DataProfile profile = profile_lengths(documents_of(lengths), {.batch_rows = 8});
  EXPECT_EQ(profile.advice().packing_strategy(), "bfd");
  EXPECT_EQ(profile.advice().max_length(), 256);
  EXPECT_THAT(profile.advice().reasons(0), HasSubstr("No document is longer than 256"));
}

TEST(Advice, TakesLongerRowsWhereDocumentsFillLittleMoreThanHalf) {
  const v1::DataProfile profile =
      profile_lengths(documents_of(std::vector<int32_t>(2000, 600)), {.batch_rows = 8});
  EXPECT_EQ(profile.advice().max_length(), 2048);
}

TEST(Advice, SplitsWhatTheModelCannotHold) {
  const v1::DataProfile profile = profile_lengths(documents_of(std::vector<int32_t>(500, 5000)),
                                                  {.batch_rows = 2, .context = 2048});
  EXPECT_EQ(profile.context(), 2048);
  EXPECT_LE(profile.advice().max_length(), 2048);
  EXPECT_EQ(profile.advice().packing_strategy(), "bfd_split");
}

TEST(Advice, DoesNotPackDocumentsThatFillRows) {
  const v1::DataProfile profile =
      profile_lengths(documents_of(std::vector<int32_t>(500, 512)), {.batch_rows = 2});
  EXPECT_EQ(profile.advice().max_length(), 512);
  EXPECT_EQ(profile.advice().packing_strategy(), "none");
}

v1::InspectRequest request_for(const std::filesystem::path& data) {
  v1::InspectRequest request;
  request.mutable_spec()->mutable_data()->add_train(data);
  v1::Sft& sft = *request.mutable_spec()->mutable_method()->mutable_sft();
  sft.set_dataset_text_field("text");
  request.mutable_profile();
  return request;
}

v1::DataProfile profile_of(const v1::InspectRequest& request) {
  v1::DataProfile result;
  profile(request, [&](const v1::InspectReply& reply) {
    if (reply.has_profile()) result = reply.profile();
  });
  return result;
}

TEST(Profile, ReadsDocumentsAsTrainingDoes) {
  const TemporaryFolder folder;
  auto request = request_for(folder.write("pairs.jsonl",
                                          "{\"prompt\": \"abcdef\", \"completion\": \"cd\"}\n"
                                          "{\"prompt\": \"x\", \"completion\": \"y\"}\n"));
  request.mutable_spec()->mutable_model()->set_tokenizer(fixture("qwen"));
  request.mutable_profile()->add_max_lengths(4);
  const v1::DataProfile found = profile_of(request);
  EXPECT_EQ(found.num_documents(), 2);
  // What the same documents are without a limit.
  v1::InspectRequest whole = request;
  whole.clear_profile();
  int64_t num_tokens = 0;
  inspect(whole, [&](const v1::InspectReply& reply) {
    if (reply.has_data()) num_tokens = reply.data().num_tokens();
  });
  EXPECT_EQ(found.num_tokens(), num_tokens);
  EXPECT_EQ(found.choices(0).max_length(), 4);
  EXPECT_EQ(found.choices(0).num_lost_documents(), 1);
  request.set_max_documents(1);
  EXPECT_EQ(profile_of(request).num_documents(), 1);
}

TEST(Profile, TakesBothDocumentsOfPairsAndDoesNotPackThem) {
  const TemporaryFolder folder;
  auto request =
      request_for(folder.write("pairs.jsonl", R"({"chosen_ids": [1, 2, 3], "rejected_ids": [1]})"));
  request.mutable_spec()->mutable_method()->mutable_reward();
  request.mutable_spec()->mutable_training()->set_per_device_train_batch_size(4);
  request.mutable_profile()->add_max_lengths(2);
  const v1::DataProfile found = profile_of(request);
  EXPECT_EQ(found.num_documents(), 2);
  EXPECT_EQ(found.num_tokens(), 4);
  EXPECT_EQ(found.batch_rows(), 8);
  EXPECT_EQ(found.choices(0).num_lost_documents(), 1);
  EXPECT_TRUE(found.choices(0).packed().empty());
  EXPECT_EQ(found.advice().packing_strategy(), "none");
}

TEST(Profile, TokensNeedNoTokenizer) {
  const TemporaryFolder folder;
  const auto tokens = folder.write("t.jsonl", "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4]}\n");
  EXPECT_EQ(profile_of(request_for(tokens)).num_tokens(), 4);
  const auto text = folder.write("x.jsonl", "{\"text\": \"abc\"}\n");
  EXPECT_THAT([&] { profile_of(request_for(text)); },
              ThrowsMessage<UserError>(HasSubstr("no tokenizer")));
}

TEST(Profile, RefusesLengthsThatAreNone) {
  const TemporaryFolder folder;
  auto request = request_for(folder.write("t.jsonl", "{\"input_ids\": [1]}\n"));
  request.mutable_profile()->add_max_lengths(0);
  EXPECT_THAT([&] { profile_of(request); }, ThrowsMessage<UserError>(HasSubstr("from 1 to")));
}

}  // namespace
}  // namespace tessera
