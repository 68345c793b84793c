#include "server/agents/peaks.h"

#include <algorithm>

namespace tessera::server {
namespace {

// The second step has all that a step has: the first one makes the optimizer's states.
constexpr int kFirstSteps = 2;

}  // namespace

bool saw_first_steps(const JobRecord& record) {
  const auto& ranks = record.gang().ranks();
  return std::all_of(ranks.begin(), ranks.end(), [](const GangRank& rank) {
    return rank.memory_step() >= rank.resumed_step() + kFirstSteps;
  });
}

v1::PeakMeasured measured_peak(const JobRecord& record, const Nodes& nodes) {
  const auto& ranks = record.gang().ranks();
  const auto most = std::max_element(
      ranks.begin(), ranks.end(),
      [](const GangRank& a, const GangRank& b) { return a.peak_bytes() < b.peak_bytes(); });
  v1::PeakMeasured peak;
  peak.set_rank(static_cast<int32_t>(most - ranks.begin()));
  peak.set_measured_bytes(most->peak_bytes());
  peak.set_predicted_bytes(record.job().rehearsal().peak_bytes());
  peak.set_device(record.job().spec().resources().device());
  if (peak.device() != "cuda") return peak;
  const v1::Placement& place = record.job().placements(peak.rank());
  const auto node = nodes.all().find(place.node());
  if (node == nodes.all().end()) return peak;
  for (const v1::Device& device : node->second.info.devices()) {
    if (device.index() == place.device_index()) peak.set_device(device.model());
  }
  return peak;
}

}  // namespace tessera::server
