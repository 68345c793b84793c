#include "worker/generate/page_pool.h"

#include <gmock/gmock.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;

TEST(PagePool, GivesEachPageOnce) {
  PagePool pool(3);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_THAT((std::vector{pool.take(), pool.take(), pool.take()}), ElementsAre(0, 1, 2));
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_ANY_THROW(pool.take());
}

TEST(PagePool, FreesAPageWithItsLastHolder) {
  PagePool pool(2);
  const int32_t page = pool.take();
  pool.share(page);
  EXPECT_EQ(pool.num_holders(page), 2);
  pool.give_back(page);
  EXPECT_THAT(pool.held(), ElementsAre(page));
  EXPECT_EQ(pool.num_free(), 1);
  pool.give_back(page);
  EXPECT_THAT(pool.held(), ElementsAre());
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PagePool, RefusesPagesThatNobodyHolds) {
  PagePool pool(2);
  EXPECT_ANY_THROW(pool.give_back(0));
  EXPECT_ANY_THROW(pool.share(1));
}

}  // namespace
}  // namespace tessera
