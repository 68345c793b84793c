// Who waits for whom: by what ranks tell of their last exchanges, and by their times of a step.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "tessera/v1/telemetry.pb.h"

namespace tessera::spec {

struct HangReport {
  // The latest of each rank; of one that has none it is taken that it did not answer.
  std::map<int, v1::CollectiveRecord> records;
  std::set<int> ended;  // ranks whose processes are gone
};

struct HangFinding {
  int rank = -1;     // that the others wait for; -1: none is
  std::string text;  // one sentence without a full stop; empty: nothing is to be said
};

// `parallelism` has its defaults, and is that of the ranks as they run.
HangFinding explain_hang(const v1::Parallelism& parallelism, const HangReport& report);

// In one line.
std::string describe_straggler(const v1::Straggler& straggler);

// What the rank waits for; nullptr: for nothing.
const v1::Collective* waited_for(const v1::CollectiveRecord& record);

// The ranks of `rank`'s group of that name (Collective.group), in order; only `rank` where there is
// no such group.
std::vector<int> ranks_of_group(const v1::Parallelism& parallelism, const std::string& group,
                                int rank);

}  // namespace tessera::spec
