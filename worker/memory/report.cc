#include "worker/memory/report.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace {

// Cells of one message; those beyond are summed up by owner and phase.
constexpr size_t kMaxCells = 256;
constexpr char kOtherBlocks[] = "others";

using Cells = google::protobuf::RepeatedPtrField<v1::MemoryCell>;

v1::MemoryCell message(const MemoryCell& cell) {
  v1::MemoryCell out;
  out.set_owner(std::string(owner_name(cell.owner)));
  out.set_block(block_name(cell.block));
  out.set_phase(std::string(phase_name(cell.phase)));
  out.set_bytes(cell.bytes);
  return out;
}

v1::MemoryCell message(const Attribution& who, int64_t bytes) {
  return message(MemoryCell{who.owner, who.phase, who.block, bytes});
}

// `cells` are sorted, the largest first.
Cells messages(const std::vector<MemoryCell>& cells) {
  Cells out;
  std::map<std::pair<Owner, Phase>, int64_t> rest;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i < kMaxCells) {
      *out.Add() = message(cells[i]);
    } else {
      rest[{cells[i].owner, cells[i].phase}] += cells[i].bytes;
    }
  }
  for (const auto& [key, bytes] : rest) {
    v1::MemoryCell& cell = *out.Add();
    cell = message(MemoryCell{key.first, key.second, 0, bytes});
    cell.set_block(kOtherBlocks);
  }
  return out;
}

void fill(const MemoryTotals& device, const MemoryTotals& host, int64_t device_limit,
          v1::MemorySnapshot& out) {
  out.set_current_bytes(device.current_bytes);
  out.set_peak_bytes(device.peak_bytes);
  *out.mutable_owners() = owner_bytes(device);
  *out.mutable_phases() = phase_bytes(device);
  out.set_host_current_bytes(host.current_bytes);
  out.set_host_peak_bytes(host.peak_bytes);
  *out.mutable_host_owners() = owner_bytes(host);
  out.set_device_limit_bytes(device_limit);
  out.set_unattributed_at_peak_bytes(device.at_peak_by_owner[static_cast<size_t>(Owner::kOther)]);
  const ProcessMemory process = process_memory();
  out.set_rss_bytes(process.rss_bytes);
  out.set_peak_rss_bytes(process.peak_rss_bytes);
}

}  // namespace

google::protobuf::RepeatedPtrField<v1::OwnerBytes> owner_bytes(const MemoryTotals& totals) {
  google::protobuf::RepeatedPtrField<v1::OwnerBytes> out;
  for (int i = 0; i < kNumOwners; ++i) {
    if (totals.peak_by_owner[i] == 0) continue;
    v1::OwnerBytes& owner = *out.Add();
    owner.set_owner(std::string(owner_name(static_cast<Owner>(i))));
    owner.set_current_bytes(totals.current_by_owner[i]);
    owner.set_at_peak_bytes(totals.at_peak_by_owner[i]);
    owner.set_peak_bytes(totals.peak_by_owner[i]);
  }
  return out;
}

google::protobuf::RepeatedPtrField<v1::PhaseBytes> phase_bytes(const MemoryTotals& totals) {
  google::protobuf::RepeatedPtrField<v1::PhaseBytes> out;
  for (int i = 0; i < kNumPhases; ++i) {
    if (totals.peak_by_phase[i] == 0) continue;
    v1::PhaseBytes& phase = *out.Add();
    phase.set_phase(std::string(phase_name(static_cast<Phase>(i))));
    phase.set_peak_bytes(totals.peak_by_phase[i]);
  }
  return out;
}

v1::MemorySnapshot memory_snapshot(const MemoryLedger& ledger) {
  v1::MemorySnapshot out;
  fill(ledger.snapshot(Space::kDevice), ledger.snapshot(Space::kHost), ledger.device_limit(), out);
  return out;
}

v1::MemoryPeak memory_peak(const MemoryLedger& ledger) {
  v1::MemoryPeak out;
  const SpacePeak device = ledger.peak(Space::kDevice), host = ledger.peak(Space::kHost);
  out.set_peak_bytes(device.bytes);
  *out.mutable_reached() = message(device.reached, 0);
  *out.mutable_cells() = messages(device.cells);
  out.set_host_peak_bytes(host.bytes);
  *out.mutable_host_cells() = messages(host.cells);
  return out;
}

v1::OutOfMemory out_of_memory(const MemoryRefusal& refusal) {
  v1::OutOfMemory out;
  *out.mutable_requested() = message(refusal.who, refusal.bytes);
  out.set_space(std::string(space_name(refusal.who.space)));
  fill(refusal.totals[0], refusal.totals[1], refusal.device_limit, *out.mutable_memory());
  *out.mutable_cells() = messages(refusal.cells);
  return out;
}

}  // namespace tessera
