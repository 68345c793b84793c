// Who is missing, by what ranks told.
#include "proto/spec/hangs.h"

#include <gtest/gtest.h>

namespace tessera::spec {
namespace {

v1::Parallelism mesh(int replicate, int shard, int cp) {
  v1::Parallelism parallelism;
  parallelism.set_num_processes(replicate * shard * cp);
  parallelism.set_dp_replicate_size(replicate);
  parallelism.set_dp_shard_size(shard);
  parallelism.set_cp_size(cp);
  return parallelism;
}

// One exchange of a rank.
enum Stage { kUnderWay, kWaits, kDone };
struct Exchange {
  const char* group;
  int64_t sequence;
  Stage stage;
  const char* kind = "all_gather";
  double seconds = 31;
};

v1::CollectiveRecord record(const char* phase, const std::vector<Exchange>& exchanges) {
  v1::CollectiveRecord record;
  record.set_phase(phase);
  record.set_step(7);
  record.set_num_issued(exchanges.empty() ? 0 : exchanges.back().sequence);
  for (const Exchange& exchange : exchanges) {
    v1::Collective& collective = *record.add_collectives();
    collective.set_group(exchange.group);
    collective.set_sequence(exchange.sequence);
    collective.set_kind(exchange.kind);
    collective.set_seconds(exchange.seconds);
    collective.set_done(exchange.stage == kDone);
    collective.set_is_waited_for(exchange.stage == kWaits);
  }
  return record;
}

const v1::CollectiveRecord kWaiter =
    record("forward", {{"dp_shard", 117, kDone}, {"dp_shard", 118, kWaits}});
const v1::CollectiveRecord kLate = record("data", {{"dp_shard", 117, kDone}});

struct Case {
  const char* name;
  v1::Parallelism parallelism;
  HangReport report;
  int rank;
  std::string text;
};

class Hangs : public testing::TestWithParam<Case> {};

TEST_P(Hangs, NameTheRankThatIsMissing) {
  const HangFinding finding = explain_hang(GetParam().parallelism, GetParam().report);
  EXPECT_EQ(finding.text, GetParam().text);
  EXPECT_EQ(finding.rank, GetParam().rank);
}

const Case kCases[] = {
    {"LateInUserCode",
     mesh(1, 4, 1),
     {{{0, kWaiter}, {1, kWaiter}, {2, kLate}, {3, kWaiter}}, {}},
     2,
     "rank 2 has not reached all_gather 118 of dp_shard, which ranks 0, 1 and 3 wait in since 31 "
     "s; "
     "it is in phase data of step 7"},
    {"Silent",
     mesh(1, 3, 1),
     {{{0, kWaiter}, {2, kWaiter}}, {}},
     1,
     "rank 1 does not answer, and ranks 0 and 2 wait for it in all_gather 118 of dp_shard since "
     "31 s"},
    {"Dead",
     mesh(1, 2, 1),
     {{{0, kWaiter}, {1, kWaiter}}, {1}},
     1,
     "rank 1 has ended, and rank 0 waits for it in all_gather 118 of dp_shard since 31 s"},
    {"OnlyItsOwnGroupMatters",
     mesh(2, 2, 1),
     // Rank 3 shards with 2, and is the copy of 1.
     {{{0, record("backward", {{"dp_shard", 5, kDone}, {"dp_replicate", 2, kWaits}})},
       {1, record("backward", {{"dp_shard", 5, kDone}, {"dp_replicate", 2, kWaits}})},
       {2, record("backward", {{"dp_shard", 5, kWaits}})},
       {3, record("forward", {{"dp_shard", 4, kDone}})}},
      {}},
     3,
     // By the order of the groups; each of those that wait longest names the same rank.
     "rank 3 has not reached all_gather 2 of dp_replicate, which rank 1 waits in since 31 s; it is "
     "in phase forward of step 7"},
    {"BegunAndGoneOn",
     mesh(1, 2, 1),
     {{{0, kWaiter}, {1, record("reward", {{"dp_shard", 118, kUnderWay}})}}, {}},
     1,
     "rank 1 began all_gather 118 of dp_shard, which rank 0 waits in since 31 s, and went on; it "
     "is "
     "in phase reward of step 7"},
    {"AnotherOrder",
     mesh(1, 2, 1),
     {{{0, record("forward", {{"dp_shard", 3, kWaits}})},
       {1, record("forward", {{"world", 9, kWaits}})}},
      {}},
     -1,
     "rank 0 in all_gather 3 of dp_shard and rank 1 in all_gather 9 of world wait for each other: "
     "their calls are not in the same order"},
    {"AnotherKind",
     mesh(1, 2, 1),
     {{{0, record("forward", {{"world", 9, kWaits, "barrier"}})},
       {1, record("forward", {{"world", 9, kWaits, "all_reduce"}})}},
      {}},
     -1,
     "rank 1 in all_reduce 9 of world and rank 0 in barrier 9 of world wait for each other: their "
     "calls are not in the same order"},
    {"StuckWhereAllHaveCome",
     mesh(1, 2, 1),
     {{{0, record("backward", {{"dp_shard", 118, kDone}, {"dp_shard", 119, kWaits}})},
       {1, kWaiter}},
      {}},
     1,
     "rank 1 does not get out of all_gather 118 of dp_shard, to which all ranks have come, and "
     "rank "
     "0 waits for it in all_gather 119 of dp_shard since 31 s"},
    {"TheLink",
     mesh(1, 2, 1),
     {{{0, kWaiter}, {1, kWaiter}}, {}},
     -1,
     "ranks 0 and 1 wait in all_gather 118 of dp_shard since 31 s, and no rank is elsewhere: what "
     "they exchange does not come through"},
    {"NobodyWaits",
     mesh(1, 1, 1),
     {{{0, record("reward", {})}}, {}},
     0,
     "rank 0 waits for no other rank; it is in phase reward of step 7"},
    {"OneIsBehind",
     mesh(1, 2, 1),
     {{{0, record("optimizer", {{"world", 200, kDone}})}, {1, kLate}}, {}},
     1,
     "rank 1 is behind the others, which wait in no collective; it is in phase data of step 7"},
    {"NobodyIsBehind",
     mesh(1, 2, 1),
     {{{0, record("optimizer", {})}, {1, record("optimizer", {})}}, {}},
     -1,
     "no rank is behind the others; rank 0 is in phase optimizer of step 7"},
    {"NobodyAnswers", mesh(1, 2, 1), {{}, {}}, 0, "rank 0 does not answer"},
};

INSTANTIATE_TEST_SUITE_P(Cases, Hangs, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(Hangs, NamesEightRanksAndCountsTheOthers) {
  HangReport report;
  for (int rank = 0; rank < 20; ++rank) report.records[rank] = rank == 4 ? kLate : kWaiter;
  EXPECT_EQ(explain_hang(mesh(1, 20, 1), report).text,
            "rank 4 has not reached all_gather 118 of dp_shard, which ranks 0, 1, 2, 3, 5, 6, 7, 8 "
            "and 11 more wait in since 31 s; it is in phase data of step 7");
}

// As worker/parallel/mesh.h deals them.
TEST(Hangs, KnowTheRanksOfAGroup) {
  const v1::Parallelism shape = mesh(2, 3, 2);
  EXPECT_EQ(ranks_of_group(shape, "dp_shard", 8), (std::vector{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(ranks_of_group(shape, "dp_replicate", 8), (std::vector{2, 8}));
  EXPECT_EQ(ranks_of_group(shape, "cp", 9), (std::vector{8, 9}));
  EXPECT_EQ(ranks_of_group(shape, "data", 9), (std::vector{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(ranks_of_group(shape, "world", 9).size(), 12u);
  EXPECT_EQ(ranks_of_group(shape, "of a later version", 9), std::vector{9});
}

}  // namespace
}  // namespace tessera::spec
