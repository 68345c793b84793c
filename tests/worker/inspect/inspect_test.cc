#include "worker/inspect/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/worker/data/fixtures.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"
#include "worker/inspect/token_texts.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

v1::InspectRequest request_for(const std::filesystem::path& data) {
  v1::InspectRequest request;
  request.mutable_spec()->mutable_model()->set_tokenizer(fixture("qwen"));
  request.mutable_spec()->mutable_data()->add_train(data);
  v1::Sft& sft = *request.mutable_spec()->mutable_method()->mutable_sft();
  sft.set_dataset_text_field("text");
  sft.set_max_length(8);
  request.set_num_rows(10);
  return request;
}

struct Replies {
  v1::InspectedData data;
  std::vector<v1::InspectedRow> rows;
  std::vector<std::string> notes;
};

Replies inspect_all(const v1::InspectRequest& request) {
  Replies replies;
  inspect(request, [&](const v1::InspectReply& reply) {
    if (reply.has_data()) replies.data = reply.data();
    if (reply.has_row()) replies.rows.push_back(reply.row());
    if (reply.has_note()) replies.notes.push_back(reply.note());
  });
  return replies;
}

std::string text_of(const v1::InspectedDocument& document) {
  std::string text;
  for (const std::string& part : document.texts()) text += part;
  return text;
}

constexpr const char* kPairs = R"({"prompt": "ab", "completion": "cd"})"
                               "\n"
                               R"({"prompt": "x", "completion": "y"})"
                               "\n";

TEST(TokenTexts, GivesACharacterToTheTokenThatCompletesIt) {
  const Tokenizer tokenizer(fixture("qwen"));
  const std::string text = "naïve 日本語 🎉🎉 x";
  std::vector<int32_t> ids;
  Encoder(tokenizer).encode(text, ids);
  const auto texts = token_texts(tokenizer, ids);
  ASSERT_EQ(texts.size(), ids.size());
  std::string joined;
  bool has_empty = false;
  for (const std::string& part : texts) {
    joined += part;
    has_empty |= part.empty();
    EXPECT_EQ(part.find("\uFFFD"), std::string::npos);
  }
  EXPECT_EQ(joined, text);
  EXPECT_TRUE(has_empty);
}

TEST(TokenTexts, ShowsWhatIsNoCharacter) {
  const Tokenizer tokenizer(fixture("qwen"));
  std::vector<int32_t> ids;
  Encoder(tokenizer).encode("日", ids);
  ids.pop_back();
  const auto texts = token_texts(tokenizer, ids);
  EXPECT_THAT(texts.back(), HasSubstr("\uFFFD"));
}

TEST(Inspect, ShowsDocumentsOfPackedRowsWithWhatTheLossCounts) {
  const TemporaryFolder folder;
  auto request = request_for(folder.write("pairs.jsonl", kPairs));
  request.mutable_spec()->mutable_method()->mutable_sft()->set_packing(true);
  request.mutable_spec()->mutable_method()->mutable_sft()->set_packing_strategy("bfd");
  const Replies replies = inspect_all(request);
  EXPECT_EQ(replies.data.num_rows(), 1);
  EXPECT_EQ(replies.data.num_documents(), 2);
  EXPECT_EQ(replies.data.num_tokens(), 8);
  EXPECT_EQ(replies.data.num_labels(), 5);
  EXPECT_EQ(replies.data.max_documents(), 0);
  ASSERT_THAT(replies.rows, SizeIs(1));
  ASSERT_EQ(replies.rows[0].documents_size(), 2);
  EXPECT_EQ(text_of(replies.rows[0].documents(0)), "abcd<|im_end|>");
  EXPECT_THAT(replies.rows[0].documents(0).labels(), ElementsAre(false, false, true, true, true));
  EXPECT_THAT(replies.rows[0].documents(1).labels(), ElementsAre(false, true, true));
}

TEST(Inspect, ShowsTheRowsThatAreAskedFor) {
  const TemporaryFolder folder;
  auto request = request_for(folder.write("pairs.jsonl", kPairs));
  request.set_first_row(1);
  request.set_num_rows(5);
  Replies replies = inspect_all(request);
  ASSERT_THAT(replies.rows, SizeIs(1));
  EXPECT_EQ(replies.rows[0].index(), 1);
  request.set_first_row(7);
  EXPECT_THAT(inspect_all(request).rows, SizeIs(0));
  request.set_max_documents(1);
  replies = inspect_all(request);
  EXPECT_EQ(replies.data.num_documents(), 1);
  EXPECT_EQ(replies.data.max_documents(), 1);
}

constexpr const char* kTriple =
    R"({"prompt": "ab", "chosen": "cd", "rejected": "e", "margin": 0.5, "label": true})"
    "\n";

TEST(Inspect, ShowsBothDocumentsOfAPair) {
  const TemporaryFolder folder;
  auto request = request_for(folder.write("pairs.jsonl", std::string(kTriple) + kTriple));
  request.mutable_spec()->mutable_method()->mutable_dpo();
  Replies replies = inspect_all(request);
  EXPECT_EQ(replies.data.num_rows(), 2);
  EXPECT_EQ(replies.data.num_documents(), 4);
  EXPECT_EQ(replies.data.num_labels(), 10);
  ASSERT_THAT(replies.rows, SizeIs(2));
  const auto& row = replies.rows[0];
  ASSERT_EQ(row.documents_size(), 2);
  EXPECT_EQ(row.documents(0).role(), "chosen");
  EXPECT_EQ(text_of(row.documents(0)), "abcd<|im_end|>");
  EXPECT_THAT(row.documents(0).labels(), ElementsAre(false, false, true, true, true));
  EXPECT_EQ(row.documents(1).role(), "rejected");
  EXPECT_EQ(text_of(row.documents(1)), "abe<|im_end|>");
  EXPECT_THAT(row.documents(1).labels(), ElementsAre(false, false, true, true));
  EXPECT_FALSE(row.documents(0).has_margin());
  EXPECT_FALSE(row.has_mismatched());

  request.mutable_spec()->mutable_method()->mutable_reward();
  replies = inspect_all(request);
  EXPECT_EQ(replies.data.num_labels(), 4);
  EXPECT_EQ(replies.rows[0].documents(1).margin(), 0.5);
  EXPECT_THAT(replies.rows[0].documents(1).labels(), ElementsAre(false, false, false, true));
}

TEST(Inspect, ShowsWhichCompletionsAreDesirableAndTheirExchange) {
  const TemporaryFolder folder;
  auto request = request_for(folder.write("pairs.jsonl", kTriple));
  request.mutable_spec()->mutable_method()->mutable_kto()->set_loss_type("kto");
  request.mutable_spec()->mutable_training()->set_per_device_train_batch_size(2);
  const Replies replies = inspect_all(request);
  ASSERT_THAT(replies.rows, SizeIs(2));
  EXPECT_EQ(replies.rows[0].documents(0).role(), "desirable");
  EXPECT_EQ(replies.rows[1].documents(0).role(), "undesirable");
  EXPECT_EQ(text_of(replies.rows[0].mismatched()), "abe<|im_end|>");
  EXPECT_EQ(text_of(replies.rows[1].mismatched()), "abcd<|im_end|>");
}

TEST(Inspect, RefusesWhatTrainingRefuses) {
  const TemporaryFolder folder;
  const auto request = request_for(folder.write("bad.jsonl", "{\"text\": 1}\n"));
  EXPECT_THAT([&] { inspect_all(request); }, ThrowsMessage<UserError>(HasSubstr("bad.jsonl:1")));
}

}  // namespace
}  // namespace tessera
