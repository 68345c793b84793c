#include "server/security/rate_limits.h"

#include <algorithm>

namespace tessera::server {
namespace {

// More clients than this at a time share one bucket.
constexpr size_t kMaxClients = 10'000;
constexpr absl::Duration kForgetInterval = absl::Seconds(1);
constexpr char kOthers[] = "others";

}  // namespace

double RateLimits::calls_now(const Bucket& bucket, absl::Duration now) const {
  return std::min(burst_, bucket.calls + per_second_ * absl::ToDoubleSeconds(now - bucket.filled));
}

void RateLimits::forget(absl::Duration now) {
  if (now < next_forget_) return;
  next_forget_ = now + kForgetInterval;
  std::erase_if(buckets_,
                [&](const auto& entry) { return calls_now(entry.second, now) >= burst_; });
}

std::optional<absl::Duration> RateLimits::take(const std::string& client) {
  const absl::Duration now = clock_.uptime();
  const std::lock_guard lock(mutex_);
  auto found = buckets_.find(client);
  if (found == buckets_.end() && buckets_.size() >= kMaxClients) {
    forget(now);
    if (buckets_.size() >= kMaxClients) found = buckets_.try_emplace(kOthers, burst_, now).first;
  }
  if (found == buckets_.end()) found = buckets_.try_emplace(client, burst_, now).first;
  Bucket& bucket = found->second;
  bucket.calls = calls_now(bucket, now);
  bucket.filled = now;
  if (bucket.calls >= 1) {
    --bucket.calls;
    return std::nullopt;
  }
  return absl::Seconds((1 - bucket.calls) / per_second_);
}

}  // namespace tessera::server
