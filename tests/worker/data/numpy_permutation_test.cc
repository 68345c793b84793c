#include "worker/data/numpy_permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;

// What numpy 2 gives after numpy.random.seed().
TEST(NumpyPermutations, AreNumpysCallForCall) {
  NumpyPermutations draws(42);
  EXPECT_THAT(draws.next(8), ElementsAre(1, 5, 0, 7, 2, 4, 3, 6));
  EXPECT_THAT(draws.next(8), ElementsAre(3, 7, 0, 4, 5, 2, 1, 6));
  EXPECT_THAT(draws.next(5), ElementsAre(4, 3, 0, 1, 2));
  EXPECT_THAT(draws.next(1), ElementsAre(0));
  EXPECT_THAT(draws.next(12), ElementsAre(10, 2, 11, 6, 8, 9, 3, 0, 4, 1, 5, 7));
}

TEST(NumpyPermutations, TakeAnySeedAndSize) {
  EXPECT_THAT(NumpyPermutations(4294967295).next(9), ElementsAre(5, 1, 8, 7, 0, 6, 4, 2, 3));
  NumpyPermutations draws(7);
  auto order = draws.next(2000);
  order.resize(6);
  EXPECT_THAT(order, ElementsAre(1072, 1048, 204, 694, 1758, 284));
  EXPECT_THAT(draws.next(3), ElementsAre(0, 2, 1));
}

}  // namespace
}  // namespace tessera
