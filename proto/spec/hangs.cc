#include "proto/spec/hangs.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::spec {
namespace {

constexpr size_t kMaxNamed = 8;

// One exchange of one group: that of the ranks `members`.
struct Place {
  std::vector<int> members;
  std::string group;
  int64_t sequence = 0;
  std::string kind;

  auto key() const { return std::tie(members, group, sequence, kind); }
  bool operator<(const Place& other) const { return key() < other.key(); }
};

struct Waiters {
  std::vector<int> ranks;
  double seconds = 0;  // of the one that waits longest
};

std::string name_ranks(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks.front());
  std::string text = "ranks ";
  const bool cut = ranks.size() > kMaxNamed;
  const size_t named = cut ? kMaxNamed : ranks.size();
  for (size_t i = 0; i < named; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : !cut && i + 1 == named ? " and " : ", ", ranks[i]);
  }
  if (cut) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

std::string name_place(const Place& place) {
  return absl::StrCat(place.kind, " ", place.sequence, " of ", place.group);
}

std::string name_waiters(const Waiters& waiters) {
  return absl::StrCat(name_ranks(waiters.ranks), waiters.ranks.size() > 1 ? " wait" : " waits");
}

std::string duration(double seconds) {
  return absl::StrFormat("%.*f s", seconds < 10 ? 1 : 0, seconds);
}

std::string activity(const v1::CollectiveRecord& record) {
  std::string text = absl::StrCat("in phase ", record.phase());
  if (record.step() > 0) absl::StrAppend(&text, " of step ", record.step());
  return text;
}

bool has_reached(const v1::CollectiveRecord& record, const Place& place) {
  return std::ranges::any_of(record.collectives(), [&](const v1::Collective& collective) {
    return collective.group() == place.group && collective.sequence() >= place.sequence;
  });
}

bool has_finished(const v1::CollectiveRecord& record, const Place& place) {
  return std::ranges::any_of(record.collectives(), [&](const v1::Collective& collective) {
    return collective.group() == place.group && collective.sequence() == place.sequence &&
           collective.done();
  });
}

class Analysis {
 public:
  Analysis(const v1::Parallelism& parallelism, const HangReport& report)
      : parallelism_(parallelism), report_(report) {
    for (const auto& [rank, record] : report.records) {
      const v1::Collective* collective = waited_for(record);
      if (collective == nullptr || report.ended.contains(rank)) continue;
      const Place place{ranks_of_group(parallelism, collective->group(), rank), collective->group(),
                        collective->sequence(), collective->kind()};
      Waiters& waiters = places_[place];
      waiters.ranks.push_back(rank);
      waiters.seconds = std::max(waiters.seconds, collective->seconds());
      waiting_.insert(rank);
    }
  }

  HangFinding find() const {
    if (places_.empty()) return alone();
    const std::vector<Entry> entries = by_age();
    // Who waits for nobody explains all that wait: first one that has not come, then one that has
    // come and gone on to something else.
    for (const bool has_come : {false, true}) {
      for (const auto& [place, waiters] : entries) {
        for (const int rank : place.members) {
          if (waiting_.contains(rank) || is_there(rank, place) != has_come) continue;
          if (has_come && has_finished(report_.records.at(rank), place)) continue;
          return {rank, describe_missing(rank, place, waiters)};
        }
      }
    }
    if (auto stuck = find_stuck(entries); stuck.rank >= 0) return stuck;
    if (const auto other = disagreement(); !other.empty()) return {-1, other};
    const auto& [place, waiters] = entries.front();
    return {-1,
            absl::StrCat(name_waiters(waiters), " in ", name_place(place), " since ",
                         duration(waiters.seconds),
                         ", and no rank is elsewhere: what they exchange does not come through")};
  }

 private:
  using Entry = std::pair<Place, Waiters>;

  std::vector<Entry> by_age() const {
    std::vector<Entry> entries(places_.begin(), places_.end());
    std::ranges::stable_sort(entries, [](const Entry& a, const Entry& b) {
      return a.second.seconds > b.second.seconds;
    });
    return entries;
  }

  bool is_there(int rank, const Place& place) const {
    const auto found = report_.records.find(rank);
    return found != report_.records.end() && !report_.ended.contains(rank) &&
           has_reached(found->second, place);
  }

  std::string describe_missing(int rank, const Place& place, const Waiters& waiters) const {
    const std::string who = absl::StrCat("rank ", rank);
    const std::string others = name_waiters(waiters);
    const auto found = report_.records.find(rank);
    const bool has_ended = report_.ended.contains(rank);
    if (has_ended || found == report_.records.end()) {
      return absl::StrCat(who, has_ended ? " has ended, and " : " does not answer, and ", others,
                          " for it in ", name_place(place), " since ", duration(waiters.seconds));
    }
    const bool has_come = has_reached(found->second, place);
    return absl::StrCat(who, has_come ? " began " : " has not reached ", name_place(place),
                        ", which ", others, " in since ", duration(waiters.seconds),
                        has_come ? ", and went on; it is " : "; it is ", activity(found->second));
  }

  // A rank that others wait for, and that itself stays in a place to which all have come.
  HangFinding find_stuck(const std::vector<Entry>& entries) const {
    for (const auto& [place, waiters] : entries) {
      for (const auto& [own, ranks] : entries) {
        const bool is_complete =
            std::ranges::all_of(own.members, [&](int member) { return is_there(member, own); });
        const auto late = std::ranges::find_if(ranks.ranks, [&](int rank) {
          return std::ranges::binary_search(place.members, rank) && !is_there(rank, place);
        });
        if (!is_complete || late == ranks.ranks.end()) continue;
        return {*late, absl::StrCat("rank ", *late, " does not get out of ", name_place(own),
                                    ", to which all ranks have come, and ", name_waiters(waiters),
                                    " for it in ", name_place(place), " since ",
                                    duration(waiters.seconds))};
      }
    }
    return {};
  }

  // Ranks that wait for each other in different places.
  std::string disagreement() const {
    for (const auto& [place, waiters] : places_) {
      for (const auto& [other, others] : places_) {
        if (!(place < other)) continue;
        const int rank = waiters.ranks.front(), with = others.ranks.front();
        const bool is_same = place.members == other.members && place.group == other.group &&
                             place.sequence == other.sequence;
        const bool is_mutual = std::ranges::binary_search(place.members, with) &&
                               std::ranges::binary_search(other.members, rank) &&
                               !is_there(with, place) && !is_there(rank, other);
        if (!is_same && !is_mutual) continue;
        return absl::StrCat(name_ranks(waiters.ranks), " in ", name_place(place), " and ",
                            name_ranks(others.ranks), " in ", name_place(other),
                            " wait for each other: their calls are not in the same order");
      }
    }
    return "";
  }

  // Nobody waits.
  HangFinding alone() const {
    for (int rank = 0; rank < parallelism_.num_processes(); ++rank) {
      if (report_.ended.contains(rank) || report_.records.contains(rank)) continue;
      return {rank, absl::StrCat("rank ", rank, " does not answer")};
    }
    if (report_.records.empty()) return {};
    // On a GPU it is the device that waits, and ranks differ in what they have begun alone.
    const auto progress = [](const auto& entry) {
      return std::pair(entry.second.step(), entry.second.num_issued());
    };
    const auto [last, first] = std::ranges::minmax_element(report_.records, {}, progress);
    const std::string who = absl::StrCat("rank ", last->first);
    if (report_.records.size() == 1) {
      return {last->first,
              absl::StrCat(who, " waits for no other rank; it is ", activity(last->second))};
    }
    if (progress(*last) == progress(*first)) {
      return {-1,
              absl::StrCat("no rank is behind the others; ", who, " is ", activity(last->second))};
    }
    return {last->first, absl::StrCat(who,
                                      " is behind the others, which wait in no collective; it "
                                      "is ",
                                      activity(last->second))};
  }

  const v1::Parallelism& parallelism_;
  const HangReport& report_;
  std::map<Place, Waiters> places_;
  std::set<int> waiting_;
};

}  // namespace

std::string describe_straggler(const v1::Straggler& straggler) {
  const std::string who = absl::StrCat("rank ", straggler.rank(), " on ", straggler.node());
  if (straggler.is_over()) return absl::StrCat(who, " keeps up again");
  return absl::StrFormat("%s is slow: busy for %.3g s of a step, the rank in the middle for %.3g s",
                         who, straggler.busy_seconds(), straggler.median_busy_seconds());
}

const v1::Collective* waited_for(const v1::CollectiveRecord& record) {
  const auto& all = record.collectives();
  const auto found = std::find_if(all.rbegin(), all.rend(), [](const v1::Collective& collective) {
    return collective.is_waited_for() && !collective.done();
  });
  return found == all.rend() ? nullptr : &*found;
}

// rank = (replicate * dp_shard + shard) * cp + context, as worker/parallel/mesh.h has it.
std::vector<int> ranks_of_group(const v1::Parallelism& parallelism, const std::string& group,
                                int rank) {
  const int cp = std::max(1, parallelism.cp_size());
  const int shards = std::max(1, parallelism.dp_shard_size()) * cp;
  const int size = parallelism.num_processes();
  const auto from = [](int first, int count, int stride) {
    std::vector<int> ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
    return ranks;
  };
  if (group == "world") return from(0, size, 1);
  if (group == "dp_shard") return from(rank / shards * shards, shards, 1);
  if (group == "dp_replicate") return from(rank % shards, size / shards, shards);
  if (group == "cp") return from(rank / cp * cp, cp, 1);
  if (group == "data") return from(rank % cp, size / cp, cp);
  return {rank};
}

HangFinding explain_hang(const v1::Parallelism& parallelism, const HangReport& report) {
  return Analysis(parallelism, report).find();
}

}  // namespace tessera::spec
