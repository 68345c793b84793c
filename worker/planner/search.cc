#include "worker/planner/search.h"

#include <algorithm>
#include <map>

namespace tessera {
namespace {

// Combinations whose cost is summed up, and of these how many are rehearsed.
constexpr size_t kMaxEnumerated = 100'000;
constexpr size_t kMaxTried = 24;
// How far sums of single settings' bytes may be off.
constexpr double kSlack = 1.25;
constexpr double kSameSpeed = 1.001;
constexpr int kMaxRounds = 20;
constexpr size_t kMaxPairs = 200;

struct Found {
  Combination settings;
  Outcome outcome;
};

int num_changes(const Combination& settings) {
  return static_cast<int>(
      std::count_if(settings.begin(), settings.end(), [](int index) { return index >= 0; }));
}

class Search {
 public:
  explicit Search(const SearchSpace& space) : space_(space) {}

  std::optional<Combination> run() {
    const Combination base(space_.num_settings.size(), -1);
    if (!consider(base)) return std::nullopt;
    measure_singles(base);
    try_predicted();
    try_thriftiest();
    do improve();
    while (improve_by_two());
    if (!best_ || best_->outcome.bytes > space_.limit_bytes) return std::nullopt;
    return best_->settings;
  }

 private:
  bool fits(const Outcome& outcome) const { return outcome.bytes <= space_.limit_bytes; }

  // What does not fit is worse the larger it is.
  bool is_better(const Found& a, const Found& b) const {
    if (fits(a.outcome) != fits(b.outcome)) return fits(a.outcome);
    if (!fits(a.outcome)) return a.outcome.bytes < b.outcome.bytes;
    if (a.outcome.seconds * kSameSpeed < b.outcome.seconds) return true;
    if (b.outcome.seconds * kSameSpeed < a.outcome.seconds) return false;
    const int changes_a = num_changes(a.settings), changes_b = num_changes(b.settings);
    return changes_a != changes_b ? changes_a < changes_b : a.outcome.bytes < b.outcome.bytes;
  }

  std::optional<Outcome> rehearse(const Combination& settings) {
    const auto known = known_.find(settings);
    if (known != known_.end()) return known->second;
    return known_[settings] = space_.rehearse(settings);
  }

  // Whether it became the best one.
  bool consider(const Combination& settings) {
    const std::optional<Outcome> outcome = rehearse(settings);
    if (!outcome) return false;
    Found found{settings, *outcome};
    if (best_ && !is_better(found, *best_)) return false;
    best_ = std::move(found);
    return true;
  }

  void measure_singles(const Combination& base) {
    base_ = *rehearse(base);
    singles_.resize(base.size());
    for (size_t knob = 0; knob < base.size(); ++knob) {
      for (int setting = 0; setting < space_.num_settings[knob]; ++setting) {
        Combination single = base;
        single[knob] = setting;
        consider(single);
        singles_[knob].push_back(rehearse(single));
      }
    }
  }

  // As if each setting added its bytes and its seconds.
  Outcome predict(const Combination& settings) const {
    Outcome sum = base_;
    for (size_t knob = 0; knob < settings.size(); ++knob) {
      if (settings[knob] < 0) continue;
      const Outcome& single = *singles_[knob][static_cast<size_t>(settings[knob])];
      sum.bytes += single.bytes - base_.bytes;
      sum.seconds += single.seconds - base_.seconds;
    }
    return sum;
  }

  void enumerate(Combination& settings, size_t knob, std::vector<Found>& all) const {
    if (all.size() >= kMaxEnumerated) return;
    if (knob == settings.size()) {
      all.push_back({settings, predict(settings)});
      return;
    }
    for (int setting = -1; setting < space_.num_settings[knob]; ++setting) {
      if (setting >= 0 && !singles_[knob][static_cast<size_t>(setting)]) continue;
      settings[knob] = setting;
      enumerate(settings, knob + 1, all);
    }
    settings[knob] = -1;
  }

  void try_predicted() {
    std::vector<Found> all;
    Combination settings(space_.num_settings.size(), -1);
    enumerate(settings, 0, all);
    std::stable_sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
      return a.outcome.seconds < b.outcome.seconds;
    });
    // Those that should fit, and those that may: bytes do not quite add up.
    const auto limit = static_cast<double>(space_.limit_bytes);
    try_fastest(all, 0, limit);
    try_fastest(all, limit, kSlack * limit);
  }

  // Of those that should have more than `from` bytes and at most `to`. `all` is sorted by time.
  void try_fastest(const std::vector<Found>& all, double from, double to) {
    size_t tried = 0;
    for (const Found& found : all) {
      const auto bytes = static_cast<double>(found.outcome.bytes);
      if (bytes > to || (from > 0 && bytes <= from)) continue;
      const bool is_slower =
          best_ && fits(best_->outcome) && found.outcome.seconds > best_->outcome.seconds;
      if (is_slower || tried++ == kMaxTried) return;
      consider(found.settings);
    }
  }

  // Of each knob what saves most: a way in where hardly anything fits.
  void try_thriftiest() {
    Combination thrifty(space_.num_settings.size(), -1);
    for (size_t knob = 0; knob < thrifty.size(); ++knob) {
      int64_t least = base_.bytes;
      for (size_t i = 0; i < singles_[knob].size(); ++i) {
        if (!singles_[knob][i] || singles_[knob][i]->bytes >= least) continue;
        least = singles_[knob][i]->bytes;
        thrifty[knob] = static_cast<int>(i);
      }
    }
    consider(thrifty);
  }

  // One knob at a time, from the best so far.
  void improve() {
    for (int round = 0; round < kMaxRounds; ++round) {
      const Combination from = best_->settings;
      for (size_t knob = 0; knob < from.size(); ++knob) {
        for (int setting = -1; setting < space_.num_settings[knob]; ++setting) {
          if (setting == from[knob]) continue;
          Combination changed = from;
          changed[knob] = setting;
          consider(changed);
        }
      }
      if (best_->settings == from) return;
    }
  }

  // Two knobs at a time: one that is faster may fit with another that saves, although neither is
  // better alone. What they save does not add up, so those that should be faster are tried, the
  // fastest first. Returns whether one was better.
  bool improve_by_two() {
    std::vector<Found> pairs;
    for (size_t knob = 0; knob < singles_.size(); ++knob) {
      for (size_t other = knob + 1; other < singles_.size(); ++other) add_pairs(knob, other, pairs);
    }
    std::stable_sort(pairs.begin(), pairs.end(), [](const Found& a, const Found& b) {
      return a.outcome.seconds < b.outcome.seconds;
    });
    pairs.resize(std::min(pairs.size(), kMaxPairs));
    return std::ranges::any_of(pairs, [&](const Found& pair) { return consider(pair.settings); });
  }

  // Of the best one with other settings of these two knobs, those that should be faster, or where
  // it does not fit, all.
  void add_pairs(size_t knob, size_t other, std::vector<Found>& pairs) const {
    const double now = predict(best_->settings).seconds;
    Combination settings = best_->settings;
    for (int a = -1; a < space_.num_settings[knob]; ++a) {
      for (int b = -1; b < space_.num_settings[other]; ++b) {
        settings[knob] = a;
        settings[other] = b;
        if (a == best_->settings[knob] || b == best_->settings[other] || !is_known(settings))
          continue;
        const Outcome predicted = predict(settings);
        if (predicted.seconds < now || !fits(best_->outcome))
          pairs.push_back({settings, predicted});
      }
    }
  }

  // Whether each of the settings alone was rehearsed.
  bool is_known(const Combination& settings) const {
    for (size_t knob = 0; knob < settings.size(); ++knob) {
      if (settings[knob] >= 0 && !singles_[knob][static_cast<size_t>(settings[knob])]) return false;
    }
    return true;
  }

  const SearchSpace& space_;
  Outcome base_;
  std::vector<std::vector<std::optional<Outcome>>> singles_;  // by knob and setting
  std::map<Combination, std::optional<Outcome>> known_;
  std::optional<Found> best_;
};

}  // namespace

std::optional<Combination> find_fastest(const SearchSpace& space) { return Search(space).run(); }

}  // namespace tessera
