#include "server/jobs/state.h"

#include <set>

#include <gtest/gtest.h>

namespace tessera::server {
namespace {

using v1::Job;

// Written down a second time, as a picture: rows are from, columns to.
TEST(StateTable, AllowsExactlyThesePairs) {
  const std::vector<std::string> picture = {
      // ? none Q queued S starting R running r restarting C cancelling s F X terminal P stopping
      // U suspended
      ".Q.........",  // new
      "..S....FX.U",  // QUEUED
      "...RrC...P.",  // STARTING
      "....rCs..P.",  // RUNNING
      ".Q...C.F..U",  // RESTARTING
      "........X..",  // CANCELLING
      "...........",  // SUCCEEDED
      "...........",  // FAILED
      "...........",  // CANCELLED
      ".Q...CsF..U",  // STOPPING
      ".Q.....FX..",  // SUSPENDED
  };
  for (int from = 0; from <= Job::State_MAX; ++from) {
    for (int to = 0; to <= Job::State_MAX; ++to) {
      EXPECT_EQ(can_transition(static_cast<Job::State>(from), static_cast<Job::State>(to)),
                picture[from][to] != '.')
          << Job::State_Name(from) << " to " << Job::State_Name(to);
    }
  }
}

TEST(StateTable, EveryStateIsReachedAndCanEnd) {
  for (int target = Job::QUEUED; target <= Job::State_MAX; ++target) {
    std::set<int> reached{Job::STATE_UNSPECIFIED};
    std::set<int> ending;
    for (int round = 0; round <= Job::State_MAX; ++round) {
      for (int from = 0; from <= Job::State_MAX; ++from) {
        for (int to = 0; to <= Job::State_MAX; ++to) {
          if (!can_transition(static_cast<Job::State>(from), static_cast<Job::State>(to))) continue;
          if (reached.contains(from)) reached.insert(to);
          if (is_terminal(static_cast<Job::State>(to)) || ending.contains(to)) ending.insert(from);
        }
      }
    }
    EXPECT_TRUE(reached.contains(target)) << Job::State_Name(target);
    EXPECT_NE(is_terminal(static_cast<Job::State>(target)), ending.contains(target))
        << Job::State_Name(target);
  }
}

TEST(StateTable, TerminalStatesHoldNoDevices) {
  for (int state = 0; state <= Job::State_MAX; ++state) {
    const auto value = static_cast<Job::State>(state);
    EXPECT_FALSE(is_terminal(value) && holds_devices(value));
  }
  EXPECT_TRUE(holds_devices(Job::CANCELLING) && holds_devices(Job::STOPPING));
  EXPECT_FALSE(holds_devices(Job::SUSPENDED));
  EXPECT_FALSE(holds_devices(Job::QUEUED));
}

}  // namespace
}  // namespace tessera::server
