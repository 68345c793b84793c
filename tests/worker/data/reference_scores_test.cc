#include "worker/data/reference_scores.h"

#include <gmock/gmock.h>

#include "tests/worker/data/data_fixture.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

constexpr const char* kPairs =
    "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n"
    "{\"prompt\": \"d\", \"chosen\": \"e\", \"rejected\": \"f\"}\n";

class ReferenceScoresTest : public ::testing::Test {
 protected:
  ReferenceScoresTest() : cache_({folder_.path() / "cache", 0}, {}) {
    folder_.write("pairs.jsonl", kPairs);
    std::filesystem::create_directories(folder_.path() / "model");
    folder_.write("model/model.safetensors", "weights");
    folder_.write("model/config.json", "{}");
  }

  std::unique_ptr<Dataset> load(RecordKind kind = RecordKind::kDpo, int64_t max_length = 8) {
    DatasetOptions options = dataset_of({folder_.path() / "pairs.jsonl"});
    options.examples.kind = kind;
    options.max_length = max_length;
    options.cache.directory = folder_.path() / "cache";
    if (kind == RecordKind::kKto) options.rotation_rows = 2;
    return load_dataset(options);
  }

  std::string key(const Dataset& dataset, const std::string& compute = "float32") {
    return reference_key(cache_, dataset,
                         {.weights = folder_.path() / "model", .compute = compute});
  }

  TemporaryFolder folder_;
  TokenCache cache_;
};

TEST_F(ReferenceScoresTest, AreKeptForADocumentOfEachRow) {
  const auto dataset = load();
  EXPECT_EQ(ReferenceScores::find(cache_, key(*dataset), *dataset), nullptr);
  ReferenceScores(*dataset, {-1, -2.5, -3, -4}).save(cache_, key(*dataset));
  const auto found = ReferenceScores::find(cache_, key(*dataset), *dataset);
  ASSERT_NE(found, nullptr);
  EXPECT_THAT(found->of_row(0), ElementsAre(-1, -2.5));
  EXPECT_THAT(found->of_row(1), ElementsAre(-3, -4));
  EXPECT_THROW(ReferenceScores(*dataset, {-1, -2}), std::logic_error);
}

TEST_F(ReferenceScoresTest, HaveAKeyOfAllThatTheyFollowFrom) {
  const auto dataset = load();
  const std::string same = key(*load());
  EXPECT_EQ(same, key(*dataset));
  EXPECT_NE(same, key(*dataset, "bfloat16"));
  EXPECT_NE(same, key(*load(RecordKind::kDpo, 7)));
  const auto unpaired = load(RecordKind::kKto);
  EXPECT_NE(same, key(*unpaired));
  EXPECT_NE(key(*unpaired), key(*unpaired->mismatched()));
  folder_.write("model/model.safetensors", "trained weights");
  EXPECT_NE(same, key(*dataset));
  folder_.write("pairs.jsonl", std::string(kPairs) + kPairs);
  EXPECT_NE(load()->key(), dataset->key());
}

TEST_F(ReferenceScoresTest, HaveNoKeyWithoutACache) {
  DatasetOptions options = dataset_of({folder_.path() / "pairs.jsonl"});
  options.examples.kind = RecordKind::kDpo;
  EXPECT_EQ(key(*load_dataset(options)), "");
}

TEST_F(ReferenceScoresTest, OfADamagedEntryAreNotFound) {
  const auto dataset = load();
  ReferenceScores(*dataset, {-1, -2, -3, -4}).save(cache_, key(*dataset));
  const auto path = folder_.path() / "cache" / "tokens" / key(*dataset) / "values";
  std::filesystem::resize_file(path, 15);
  EXPECT_EQ(ReferenceScores::find(cache_, key(*dataset), *dataset), nullptr);
}

}  // namespace
}  // namespace tessera
