#include "worker/planner/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tessera {
namespace {

// Bytes and seconds by knob and setting, beside those of the job as written, and what pairs of
// settings add.
struct World {
  std::vector<std::vector<Outcome>> settings;
  Outcome base{1000, 10};
  std::function<void(const Combination&, Outcome&)> interact = [](const auto&, auto&) {};
  int num_rehearsed = 0;

  std::optional<Outcome> operator()(const Combination& combination) {
    ++num_rehearsed;
    Outcome outcome = base;
    for (size_t i = 0; i < combination.size(); ++i) {
      if (combination[i] < 0) continue;
      outcome.bytes += settings[i][static_cast<size_t>(combination[i])].bytes;
      outcome.seconds += settings[i][static_cast<size_t>(combination[i])].seconds;
    }
    interact(combination, outcome);
    return outcome;
  }

  std::optional<Combination> find(int64_t limit) {
    SearchSpace space;
    space.limit_bytes = limit;
    for (const auto& knob : settings) space.num_settings.push_back(static_cast<int>(knob.size()));
    space.rehearse = [this](const Combination& combination) { return (*this)(combination); };
    return find_fastest(space);
  }

  // Of all combinations.
  void visit(Combination& combination, size_t knob, int64_t limit, double& best) {
    if (knob == settings.size()) {
      const Outcome outcome = *(*this)(combination);
      if (outcome.bytes <= limit) best = std::min(best, outcome.seconds);
      return;
    }
    for (int i = -1; i < static_cast<int>(settings[knob].size()); ++i) {
      combination[knob] = i;
      visit(combination, knob + 1, limit, best);
    }
  }
  double best_seconds(int64_t limit) {
    double best = 1e9;
    Combination combination(settings.size(), -1);
    visit(combination, 0, limit, best);
    return best;
  }
};

TEST(Search, KeepsTheJobWhereItFitsAndNothingIsFaster) {
  World world{.settings = {{{-500, 3}}, {{-300, 1}}}};
  EXPECT_EQ(world.find(1000), (Combination{-1, -1}));
}

TEST(Search, TakesWhatIsFasterWhereThereIsRoom) {
  World world{.settings = {{{500, -3}}, {{-300, 1}}}};
  EXPECT_EQ(world.find(2000), (Combination{0, -1}));
  EXPECT_EQ(world.find(1400), (Combination{0, 0}));
}

TEST(Search, TakesTheCheapestThatFits) {
  World world{.settings = {{{-500, 3}}, {{-300, 1}}}};
  EXPECT_EQ(world.find(700), (Combination{-1, 0}));
  EXPECT_EQ(world.find(600), (Combination{0, -1}));
  EXPECT_EQ(world.find(300), (Combination{0, 0}));
  EXPECT_EQ(world.find(100), std::nullopt);
}

TEST(Search, FindsCombinationsThatSaveMoreTogether) {
  World world{.settings = {{{0, 1}}, {{0, 1}}, {{-100, 5}}}};
  world.interact = [](const Combination& c, Outcome& outcome) {
    if (c[0] == 0 && c[1] == 0) outcome.bytes -= 400;
    if (c[0] == 0 && c[2] == 0) outcome.bytes += 50;
  };
  const auto found = world.find(850);
  ASSERT_TRUE(found);
  EXPECT_LE(world(*found)->bytes, 850);
}

TEST(Search, PassesOverWhatIsNotAllowed) {
  SearchSpace space;
  space.limit_bytes = 500;
  space.num_settings = {1, 1};
  space.rehearse = [](const Combination& c) -> std::optional<Outcome> {
    if (c[0] == 0) return std::nullopt;
    return c[1] == 0 ? Outcome{400, 20} : Outcome{1000, 10};
  };
  EXPECT_EQ(find_fastest(space), (Combination{-1, 0}));
}

TEST(Search, ComesCloseToTheBestOfManyWorlds) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    World world;
    for (int knob = 0; knob < 5; ++knob) {
      auto& settings = world.settings.emplace_back();
      for (int i = 0; i < 3; ++i) {
        settings.push_back({-static_cast<int64_t>(random() % 250), (random() % 100) / 50.0 - 0.2});
      }
    }
    // Peaks do not add up: one part hides another.
    const auto floor = static_cast<int64_t>(200 + random() % 300);
    world.interact = [floor](const Combination&, Outcome& outcome) {
      outcome.bytes = std::max(outcome.bytes, floor);
    };
    const int64_t limit = floor + static_cast<int64_t>(random() % (1000 - floor));
    const double best = world.best_seconds(limit);
    world.num_rehearsed = 0;
    const auto found = world.find(limit);
    ASSERT_EQ(found.has_value(), best < 1e9) << round;
    EXPECT_LE(world.num_rehearsed, 400);
    if (!found) continue;
    const Outcome outcome = *world(*found);
    EXPECT_LE(outcome.bytes, limit) << round;
    EXPECT_LE(outcome.seconds, 1.05 * best) << round;
  }
}

// Activations: microbatches, recompute and offloading each leave a share of them, so that what one
// saves depends on the others; what takes the most of them is the fastest.
TEST(Search, ComesCloseToTheBestWhereSharesMultiply) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    World world;
    std::vector<std::vector<double>> shares;
    for (int knob = 0; knob < 4; ++knob) {
      auto& settings = world.settings.emplace_back();
      auto& left = shares.emplace_back();
      for (int i = 0; i < 3; ++i) {
        left.push_back(std::exp2((static_cast<double>(random() % 1000) / 1000.0 - 0.6) * 4));
        settings.push_back({0, -std::log2(left.back()) + (random() % 100) / 100.0});
      }
    }
    world.interact = [&shares](const Combination& combination, Outcome& outcome) {
      double activations = 800;
      for (size_t knob = 0; knob < shares.size(); ++knob) {
        if (combination[knob] >= 0) activations *= shares[knob][combination[knob]];
      }
      outcome.bytes = 200 + static_cast<int64_t>(activations);
    };
    const auto limit = static_cast<int64_t>(300 + random() % 2000);
    const double best = world.best_seconds(limit);
    world.num_rehearsed = 0;
    const auto found = world.find(limit);
    ASSERT_EQ(found.has_value(), best < 1e9) << round;
    EXPECT_LE(world.num_rehearsed, 800);
    if (!found) continue;
    const Outcome outcome = *world(*found);
    EXPECT_LE(outcome.bytes, limit) << round;
    EXPECT_LE(outcome.seconds, 1.05 * best) << round;
  }
}

}  // namespace
}  // namespace tessera
