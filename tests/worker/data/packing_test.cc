#include "worker/data/packing.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <random>

#include "tests/worker/data/fixtures.h"

namespace tessera {
namespace {

std::vector<std::vector<Segment>> rows_of(const PackingPlan& plan) {
  std::vector<std::vector<Segment>> rows;
  for (int64_t i = 0; i < plan.num_rows(); ++i) {
    rows.emplace_back(plan.row(i).begin(), plan.row(i).end());
  }
  return rows;
}

std::vector<std::vector<Segment>> expected_rows(const nlohmann::json& rows) {
  std::vector<std::vector<Segment>> expected;
  for (const auto& row : rows) {
    auto& segments = expected.emplace_back();
    for (size_t i = 0; i < row.size(); i += 3) segments.push_back({row[i], row[i + 1], row[i + 2]});
  }
  return expected;
}

TEST(Packing, EqualsTrl) {
  const std::map<std::string, PackingStrategy> strategies = {
      {"bfd", PackingStrategy::kBfd},
      {"bfd_split", PackingStrategy::kBfdSplit},
      {"wrapped", PackingStrategy::kWrapped}};
  int num_plans = 0;
  for (const auto& plan : read_json_fixture("packing.json")) {
    const auto lengths = plan["lengths"].get<std::vector<int64_t>>();
    EXPECT_EQ(rows_of(plan_packing(lengths, plan["max_length"], strategies.at(plan["strategy"]))),
              expected_rows(plan["rows"]))
        << plan["strategy"] << " of " << lengths.size() << " at " << plan["max_length"];
    ++num_plans;
  }
  EXPECT_EQ(num_plans, 18);
}

TEST(Packing, WithoutStrategyARowIsADocument) {
  const std::vector<int64_t> lengths = {3, 0, 9};
  EXPECT_EQ(rows_of(plan_packing(lengths, 4, PackingStrategy::kNone)),
            (std::vector<std::vector<Segment>>{{{0, 0, 3}}, {{2, 0, 4}}}));
  EXPECT_EQ(rows_of(plan_packing(lengths, 0, PackingStrategy::kNone)),
            (std::vector<std::vector<Segment>>{{{0, 0, 3}}, {{2, 0, 9}}}));
}

TEST(Packing, NeedsALimit) {
  const std::vector<int64_t> lengths = {3};
  EXPECT_THROW(plan_packing(lengths, 0, PackingStrategy::kBfd), std::invalid_argument);
}

TEST(Packing, OfNothingIsNothing) {
  for (const auto strategy : {PackingStrategy::kNone, PackingStrategy::kBfd,
                              PackingStrategy::kBfdSplit, PackingStrategy::kWrapped}) {
    EXPECT_EQ(plan_packing({}, 8, strategy).num_rows(), 0);
    EXPECT_EQ(plan_packing(std::vector<int64_t>{0, 0}, 8, strategy).num_rows(), 0);
  }
}

// Whatever the lengths: no row is too long, and every token that is to be kept is in exactly one
// row.
TEST(Packing, KeepsEveryTokenOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const int64_t max_length = 1 + random() % 5000;
    std::vector<int64_t> lengths(random() % 2500);
    for (auto& length : lengths) length = random() % (2 * max_length);
    for (const auto strategy :
         {PackingStrategy::kBfd, PackingStrategy::kBfdSplit, PackingStrategy::kWrapped}) {
      const PackingPlan plan = plan_packing(lengths, max_length, strategy);
      std::vector<int64_t> kept(lengths.size());
      for (int64_t i = 0; i < plan.num_rows(); ++i) {
        int64_t row_length = 0;
        for (const Segment& segment : plan.row(i)) {
          row_length += segment.length;
          kept[segment.document] += segment.length;
        }
        ASSERT_GT(row_length, 0);
        ASSERT_LE(row_length, max_length);
      }
      for (size_t i = 0; i < lengths.size(); ++i) {
        ASSERT_EQ(kept[i], strategy == PackingStrategy::kBfd ? std::min(lengths[i], max_length)
                                                             : lengths[i]);
      }
    }
  }
}

}  // namespace
}  // namespace tessera
