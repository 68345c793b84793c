#include "proto/spec/addresses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::spec {
namespace {

using testing::ElementsAre;

TEST(Addresses, AreSeparatedByCommas) {
  EXPECT_THAT(split_addresses("a:1"), ElementsAre("a:1"));
  EXPECT_THAT(split_addresses("a:1,[::1]:2,unix:/x/y.sock"),
              ElementsAre("a:1", "[::1]:2", "unix:/x/y.sock"));
  EXPECT_THAT(split_addresses("unix:/a,unix:/b,c:3"), ElementsAre("unix:/a", "unix:/b", "c:3"));
}

TEST(Addresses, APathMayHoldCommas) {
  EXPECT_THAT(split_addresses("unix:/a,b/c.sock,d,unix:/e"),
              ElementsAre("unix:/a,b/c.sock,d", "unix:/e"));
}

TEST(Addresses, WhatIsNoneIsLeftToBeRefused) {
  EXPECT_THAT(split_addresses(""), ElementsAre(""));
  EXPECT_THAT(split_addresses("a:1,"), ElementsAre("a:1", ""));
  EXPECT_THAT(split_addresses("a:1,b"), ElementsAre("a:1", "b"));
}

TEST(Addresses, OnlyWhatTheLeaderDidNotSayIsAskedElsewhere) {
  EXPECT_TRUE(may_be_elsewhere(""));
  EXPECT_TRUE(may_be_elsewhere("STANDBY"));
  EXPECT_FALSE(may_be_elsewhere("NO_AGENT"));
}

}  // namespace
}  // namespace tessera::spec
