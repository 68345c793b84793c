#include "server/telemetry/thin_series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::server {

void ThinSeries::Cell::add(double value) {
  const auto single = static_cast<float>(value);
  min = count == 0 ? single : std::min(min, single);
  max = count == 0 ? single : std::max(max, single);
  sum += value;
  ++count;
}

void ThinSeries::Cell::merge(const Cell& other) {
  if (other.count == 0) return;
  min = count == 0 ? other.min : std::min(min, other.min);
  max = count == 0 ? other.max : std::max(max, other.max);
  sum += other.sum;
  count += other.count;
}

void ThinSeries::merge(Bucket& into, const Bucket& from) {
  into.last_step = from.last_step;
  into.seconds = from.seconds;
  into.num_events += from.num_events;
}

std::vector<ThinSeries::Cell> ThinSeries::grouped(const std::vector<Cell>& cells, size_t factor) {
  std::vector<Cell> groups((cells.size() + factor - 1) / factor);
  for (size_t i = 0; i < cells.size(); ++i) groups[i / factor].merge(cells[i]);
  return groups;
}

void ThinSeries::add(int32_t step, double seconds, const Values& values) {
  if (!buckets_.empty() && step < buckets_.back().last_step) rewind(step);
  if (buckets_.empty() || buckets_.back().num_events >= events_a_bucket_) {
    if (buckets_.size() == max_buckets_) halve();
  }
  if (buckets_.empty() || buckets_.back().num_events >= events_a_bucket_) {
    buckets_.push_back({.first_step = step});
    for (auto& [name, cells] : columns_) cells.emplace_back();
  }
  merge(buckets_.back(), {.last_step = step, .seconds = seconds, .num_events = 1});
  for (const auto& [name, value] : values) {
    if (!std::isfinite(value)) continue;
    auto column = columns_.find(name);
    if (column == columns_.end()) {
      if (columns_.size() == max_columns_) continue;
      column = columns_.emplace(name, std::vector<Cell>(buckets_.size())).first;
    }
    column->second.back().add(value);
  }
}

void ThinSeries::rewind(int32_t step) {
  while (!buckets_.empty() && buckets_.back().first_step >= step) buckets_.pop_back();
  for (auto& [name, cells] : columns_) cells.resize(buckets_.size());
  // What its last events add to the means cannot be taken out again.
  if (!buckets_.empty()) {
    buckets_.back().last_step = std::min(buckets_.back().last_step, step - 1);
  }
}

void ThinSeries::halve() {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (i % 2 == 0) {
      buckets_[i / 2] = buckets_[i];
    } else {
      merge(buckets_[i / 2], buckets_[i]);
    }
  }
  buckets_.resize((buckets_.size() + 1) / 2);
  for (auto& [name, cells] : columns_) cells = grouped(cells, 2);
  events_a_bucket_ *= 2;
}

ThinnedSeries ThinSeries::render(size_t max_points) const {
  const size_t factor = std::max<size_t>(1, (buckets_.size() + max_points - 1) / max_points);
  ThinnedSeries series;
  for (size_t i = 0; i < buckets_.size(); i += factor) {
    const size_t end = std::min(i + factor, buckets_.size());
    const Bucket& last = buckets_[end - 1];
    uint32_t num_events = 0;
    for (size_t part = i; part < end; ++part) num_events += buckets_[part].num_events;
    series.add_first_step(buckets_[i].first_step);
    series.add_last_step(last.last_step);
    series.add_time(last.seconds);
    series.add_num_events(static_cast<int32_t>(num_events));
  }
  series.set_events_a_bucket(static_cast<int32_t>(factor * events_a_bucket_));
  const bool is_exact = factor == 1 && events_a_bucket_ == 1;
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [name, cells] : columns_) {
    ThinnedColumn& column = *series.add_columns();
    column.set_name(name);
    for (const Cell& cell : grouped(cells, factor)) {
      column.add_mean(cell.count == 0 ? kNone : static_cast<float>(cell.sum / cell.count));
      if (is_exact) continue;
      column.add_min(cell.count == 0 ? kNone : cell.min);
      column.add_max(cell.count == 0 ? kNone : cell.max);
    }
  }
  return series;
}

}  // namespace tessera::server
