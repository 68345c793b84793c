#include "server/telemetry/sparkline.h"

#include <algorithm>

namespace tessera::server {
namespace {

// Steps are among so many events almost everywhere; else the line has a point less.
constexpr int kEventsLookedAt = 8;

void add(const v1::Event& event, Sparkline& line) {
  // Back to a checkpoint.
  while (line.step_size() > 0 && *line.step().rbegin() >= event.step().step()) {
    line.mutable_step()->RemoveLast();
    line.mutable_loss()->RemoveLast();
  }
  line.add_step(event.step().step());
  line.add_loss(static_cast<float>(event.step().loss()));
}

}  // namespace

Sparkline sparkline(Queries& queries, const JobRecord& record) {
  Sparkline line;
  const std::vector<v1::Event> head = queries.events(record.number(), 0);
  if (head.empty()) return line;
  const int64_t last = record.job().revision();
  if (head.back().revision() >= last) {
    std::vector<const v1::Event*> steps;
    for (const v1::Event& event : head) {
      if (event.has_step()) steps.push_back(&event);
    }
    const size_t stride = steps.size() / kMaxSparklinePoints + 1;
    for (size_t i = 0; i < steps.size(); ++i) {
      if ((steps.size() - 1 - i) % stride == 0) add(*steps[i], line);
    }
    return line;
  }
  const int64_t first = head.front().revision();
  for (int i = 0; i < kMaxSparklinePoints; ++i) {
    const int64_t start = first + (last - first) * i / kMaxSparklinePoints;
    const auto page = queries.events(record.number(), start, kEventsLookedAt);
    const auto step = std::find_if(page.begin(), page.end(), [](auto& e) { return e.has_step(); });
    if (step != page.end()) add(*step, line);
  }
  return line;
}

}  // namespace tessera::server
