#include "server/jobs/rank_times.h"

#include <algorithm>
#include <vector>

namespace tessera::server {

RankBusy rank_busy(const v1::StepMetrics& step) {
  std::vector<double> busy;
  for (const v1::RankTime& time : step.rank_times()) busy.push_back(time.busy_seconds());
  const auto slowest = std::max_element(busy.begin(), busy.end());
  RankBusy result{.max = *slowest, .slowest = static_cast<int>(slowest - busy.begin())};
  std::sort(busy.begin(), busy.end());
  result.min = busy.front();
  result.median = busy[(busy.size() - 1) / 2];
  return result;
}

}  // namespace tessera::server
