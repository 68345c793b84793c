// Which prompts are taken when.
#include "worker/data/prompt_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;

// Numbers of torch: generator = torch.Generator().manual_seed(7); two times torch.randperm(7,
// generator=generator), and then the same of torch.Generator().manual_seed(8).
TEST(PromptOrder, IsTheOneOfTorch) {
  const PromptOrder continues({.num_prompts = 7, .seed = 7});
  EXPECT_THAT(continues.of_epoch(0), ElementsAre(5, 0, 3, 1, 2, 6, 4));
  EXPECT_THAT(continues.of_epoch(1), ElementsAre(6, 0, 5, 4, 2, 1, 3));
  const PromptOrder seeded({.num_prompts = 7, .seed = 7, .continues = false});
  EXPECT_EQ(seeded.of_epoch(0), continues.of_epoch(0));
  EXPECT_THAT(seeded.of_epoch(1), ElementsAre(1, 5, 3, 4, 0, 2, 6));
  EXPECT_EQ(seeded.of_epoch(0), continues.of_epoch(0));
}

TEST(PromptOrder, IsThatOfTheFileWithoutShuffling) {
  EXPECT_THAT(PromptOrder({.num_prompts = 3, .shuffle = false}).of_epoch(4), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace tessera
