#include "worker/memory/counts.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr size_t kCellsPerBlock = size_t{kNumOwners} * kNumPhases;

}  // namespace

MemoryCounts::Cell& MemoryCounts::cell(const Attribution& who) {
  const size_t index = who.block * kCellsPerBlock + static_cast<size_t>(who.owner) * kNumPhases +
                       static_cast<size_t>(who.phase);
  if (index >= cells_.size()) cells_.resize((who.block + 1) * kCellsPerBlock);
  Cell& cell = cells_[index];
  if (!cell.changed) {
    cell.changed = true;
    changed_.push_back(index);
  }
  return cell;
}

void MemoryCounts::add(const Attribution& who, int64_t bytes) {
  const auto owner = static_cast<size_t>(who.owner);
  cell(who).now += bytes;
  totals_.current_bytes += bytes;
  totals_.current_by_owner[owner] += bytes;
  totals_.peak_by_owner[owner] =
      std::max(totals_.peak_by_owner[owner], totals_.current_by_owner[owner]);
  int64_t& peak_of_phase = totals_.peak_by_phase[static_cast<size_t>(who.phase)];
  peak_of_phase = std::max(peak_of_phase, totals_.current_bytes);
  if (totals_.current_bytes > totals_.peak_bytes) {
    totals_.peak_bytes = totals_.current_bytes;
    reached_peak_ = who;
    at_peak_ = true;
  }
}

void MemoryCounts::remove(const Attribution& who, int64_t bytes) {
  if (at_peak_) copy_peak();
  cell(who).now -= bytes;
  totals_.current_bytes -= bytes;
  totals_.current_by_owner[static_cast<size_t>(who.owner)] -= bytes;
}

void MemoryCounts::copy_peak() {
  for (const size_t index : changed_) {
    cells_[index].at_peak = cells_[index].now;
    cells_[index].changed = false;
  }
  changed_.clear();
  totals_.at_peak_by_owner = totals_.current_by_owner;
  at_peak_ = false;
}

const MemoryTotals& MemoryCounts::totals() {
  if (at_peak_) copy_peak();
  return totals_;
}

std::vector<MemoryCell> MemoryCounts::cells(int64_t Cell::* bytes) const {
  std::vector<MemoryCell> found;
  for (size_t index = 0; index < cells_.size(); ++index) {
    if (cells_[index].*bytes == 0) continue;
    found.push_back({static_cast<Owner>(index % kCellsPerBlock / kNumPhases),
                     static_cast<Phase>(index % kNumPhases),
                     static_cast<BlockId>(index / kCellsPerBlock), cells_[index].*bytes});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const MemoryCell& a, const MemoryCell& b) { return a.bytes > b.bytes; });
  return found;
}

std::vector<MemoryCell> MemoryCounts::cells_at_peak() {
  if (at_peak_) copy_peak();
  return cells(&Cell::at_peak);
}

std::vector<MemoryCell> MemoryCounts::cells_now() const { return cells(&Cell::now); }

void MemoryCounts::reset_peak() {
  copy_peak();
  totals_.peak_bytes = totals_.current_bytes;
  totals_.peak_by_owner = totals_.current_by_owner;
  totals_.peak_by_phase = {};
  reached_peak_ = {};
}

}  // namespace tessera
