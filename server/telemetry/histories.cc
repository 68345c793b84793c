#include "server/telemetry/histories.h"

#include <algorithm>

namespace tessera::server {

std::shared_ptr<Histories::Entry> Histories::entry(int64_t number) {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const auto& entry) { return entry->number == number; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
  } else {
    entries_.push_front(std::make_shared<Entry>(number));
    if (entries_.size() > kMaxKnownJobs) entries_.pop_back();
  }
  return entries_.front();
}

JobHistory Histories::get(int64_t number, size_t max_points, int rank, absl::Duration patience) {
  const std::shared_ptr<Entry> known = entry(number);
  const absl::Duration give_up = clock_.uptime() + patience;
  std::lock_guard lock(known->mutex);
  bool is_partial = false;
  while (true) {
    const std::vector<v1::Event> page = reader_(
        [&](Queries& queries) { return queries.events(number, known->history.revision() + 1); });
    if (page.empty()) break;
    for (const v1::Event& event : page) known->history.add(event);
    is_partial = clock_.uptime() > give_up;
    if (is_partial) break;
  }
  JobHistory history = known->history.render(max_points, rank);
  history.set_is_partial(is_partial);
  return history;
}

}  // namespace tessera::server
