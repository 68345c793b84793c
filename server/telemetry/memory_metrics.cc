#include "server/telemetry/memory_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/telemetry/gauge.h"
#include "server/telemetry/job_metrics.h"

namespace tessera::server {
namespace {

using Owners = google::protobuf::RepeatedPtrField<v1::OwnerBytes>;

class MemoryGauges {
 public:
  void add(const Labels& rank, const v1::MemorySnapshot& memory) {
    rss_.set(rank, static_cast<double>(memory.rss_bytes()));
    add_owners(with(rank, "space", "device"), memory.owners());
    add_owners(with(rank, "space", "host"), memory.host_owners());
    unattributed_.set(rank, static_cast<double>(memory.unattributed_at_peak_bytes()));
    if (memory.device_limit_bytes() > 0) {
      limit_.set(rank, static_cast<double>(memory.device_limit_bytes()));
    }
    if (!memory.has_device_allocator()) return;
    const v1::DeviceAllocator& allocator = memory.device_allocator();
    allocated_.set(rank, static_cast<double>(allocator.allocated_bytes()));
    reserved_.set(rank, static_cast<double>(allocator.reserved_bytes()));
    fragmentation_.set(rank, allocator.fragmentation());
    retries_.set(rank, static_cast<double>(allocator.num_retries()));
  }

  void move_to(std::vector<prometheus::MetricFamily>& families) {
    for (Gauge* gauge : {&now_, &at_peak_, &unattributed_, &limit_, &rss_, &allocated_, &reserved_,
                         &fragmentation_, &retries_}) {
      gauge->move_to(families);
    }
  }

 private:
  void add_owners(const Labels& space, const Owners& owners) {
    for (const v1::OwnerBytes& owner : owners) {
      const Labels labels = with(space, "owner", owner.owner());
      now_.set(labels, static_cast<double>(owner.current_bytes()));
      at_peak_.set(labels, static_cast<double>(owner.at_peak_bytes()));
    }
  }

  Gauge now_{"tessera_job_memory_bytes", "Tensor bytes now, by rank, space and owner"};
  Gauge at_peak_{"tessera_job_memory_at_peak_bytes",
                 "Tensor bytes at the moment of the space's peak, by rank, space and owner"};
  Gauge unattributed_{"tessera_job_memory_unattributed_at_peak_bytes",
                      "Tensor bytes on the device at its peak that no owner was named for"};
  Gauge limit_{"tessera_job_memory_limit_bytes", "Tensor bytes that a rank may hold on its device"};
  Gauge rss_{"tessera_job_resident_memory_bytes", "Resident set of a rank"};
  Gauge allocated_{"tessera_job_device_allocated_bytes",
                   "Bytes of the caching allocator's blocks that tensors have"};
  Gauge reserved_{"tessera_job_device_reserved_bytes",
                  "Bytes that the caching allocator has taken from the device"};
  Gauge fragmentation_{"tessera_job_device_fragmentation_ratio",
                       "Share of the reserved bytes that is in pieces no tensor has"};
  Gauge retries_{"tessera_job_device_allocation_retries",
                 "Allocations for which the caching allocator had to give memory back first"};
};

}  // namespace

void add_memory_metrics(const std::vector<const JobSeries*>& jobs,
                        std::vector<prometheus::MetricFamily>& families) {
  MemoryGauges gauges;
  for (const JobSeries* series : jobs) {
    const Labels labels = job_labels(*series);
    size_t num_ranks = 0;
    for (const auto& [rank, memory] : series->memory) {
      if (++num_ranks > kMaxRanksOfJob) break;
      gauges.add(with(labels, "rank", absl::StrCat(rank)), memory);
    }
  }
  gauges.move_to(families);
}

}  // namespace tessera::server
