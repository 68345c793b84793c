#include "worker/data/mixture.h"

#include <gmock/gmock.h>

#include "tests/worker/data/data_fixture.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

TEST(Mixture, IsThatOfDatasets) {
  int num_cases = 0;
  for (const auto& expected : read_json_fixture("interleave.json")) {
    std::vector<MixtureSource> sources;
    for (size_t i = 0; i < expected["sizes"].size(); ++i) {
      sources.push_back({expected["sizes"][i], expected["weights"][i]});
    }
    const auto stopping = expected["stopping_strategy"] == "all_exhausted"
                              ? StoppingStrategy::kAllExhausted
                              : StoppingStrategy::kFirstExhausted;
    EXPECT_THAT(interleave(sources, stopping, expected["seed"]),
                ElementsAreArray(expected["order"].get<std::vector<uint32_t>>()));
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 5);
}

TEST(Mixture, WeightsNeedNotSumToOne) {
  const std::vector<MixtureSource> parts = {{50, 0.75}, {50, 0.25}}, whole = {{50, 3}, {50, 1}};
  EXPECT_EQ(interleave(parts, StoppingStrategy::kAllExhausted, 7),
            interleave(whole, StoppingStrategy::kAllExhausted, 7));
}

TEST(Mixture, OfFilesFollowsThatOrder) {
  TemporaryFolder folder;
  auto options = dataset_of({folder.write("a.jsonl", text_lines({"a0", "a1", "a2"}))});
  options.sources.push_back({.paths = {folder.write("b.jsonl", text_lines({"b0", "b1"}))},
                             .field = "data.mixture[1].path",
                             .weight = 2});
  options.stopping = StoppingStrategy::kAllExhausted;
  options.mixture_seed = 5;
  const char* names[] = {"a0", "a1", "a2", "b0", "b1"};
  std::vector<std::string> expected;
  for (const uint32_t document :
       interleave(std::vector<MixtureSource>{{3, 1}, {2, 2}}, options.stopping, 5)) {
    expected.push_back(std::string(names[document]) + "<|im_end|>");
  }
  EXPECT_GE(expected.size(), 5);
  EXPECT_THAT(decoded_rows(*load_dataset(options)), ElementsAreArray(expected));

  options.packing = PackingStrategy::kWrapped;
  options.max_length = 1000;
  std::string all;
  for (const std::string& text : expected) all += text;
  EXPECT_THAT(decoded_rows(*load_dataset(options)), ElementsAre(all));
}

}  // namespace
}  // namespace tessera
