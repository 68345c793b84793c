#include "client/cli/memory_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"

namespace tessera::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr size_t kOwnersInLine = 3;
constexpr size_t kCellsOfRefusal = 12;

void add_owners(const Owners& owners, const std::string& before, Rows& rows) {
  for (const v1::OwnerBytes& owner : by_size(owners)) {
    if (owner.current_bytes() == 0 && owner.at_peak_bytes() == 0) continue;
    rows.push_back({absl::StrCat(before, owner.owner()), format_bytes(owner.current_bytes()),
                    format_bytes(owner.at_peak_bytes())});
  }
}

void add_allocator(const v1::DeviceAllocator& allocator, Rows& rows) {
  rows.push_back({"  in the allocator's blocks", format_bytes(allocator.allocated_bytes()), ""});
  rows.push_back({"  reserved by the allocator", format_bytes(allocator.reserved_bytes()), ""});
  rows.push_back({"  fragmentation", absl::StrFormat("%.1f%%", 100 * allocator.fragmentation()),
                  absl::StrCat(allocator.num_retries(), " retries")});
}

}  // namespace

std::vector<v1::OwnerBytes> by_size(const Owners& all) {
  std::vector<v1::OwnerBytes> owners(all.begin(), all.end());
  std::stable_sort(owners.begin(), owners.end(), [](const auto& a, const auto& b) {
    return a.at_peak_bytes() > b.at_peak_bytes();
  });
  return owners;
}

std::string compact_memory(const v1::MemorySnapshot& memory) {
  std::vector<std::string> parts;
  for (const v1::OwnerBytes& owner : by_size(memory.owners())) {
    if (parts.size() == kOwnersInLine || owner.at_peak_bytes() == 0) break;
    parts.push_back(absl::StrCat(owner.owner(), " ", format_bytes(owner.at_peak_bytes())));
  }
  const std::string peak = format_bytes(memory.peak_bytes());
  return parts.empty() ? peak : absl::StrCat(peak, " (", absl::StrJoin(parts, ", "), ")");
}

std::vector<std::string> memory_table(const v1::MemorySnapshot& memory) {
  Rows rows{{absl::StrCat("memory of rank ", memory.rank()), ">now", ">at peak"}};
  add_owners(memory.owners(), "  ", rows);
  rows.push_back(
      {"  total", format_bytes(memory.current_bytes()), format_bytes(memory.peak_bytes())});
  if (memory.device_limit_bytes() > 0) {
    rows.push_back({"  limit", "", format_bytes(memory.device_limit_bytes())});
  }
  if (memory.has_device_allocator()) add_allocator(memory.device_allocator(), rows);
  if (memory.host_peak_bytes() > 0) {
    add_owners(memory.host_owners(), "  host: ", rows);
    rows.push_back({"  host: total", format_bytes(memory.host_current_bytes()),
                    format_bytes(memory.host_peak_bytes())});
  }
  rows.push_back({"  process (resident)", format_bytes(memory.rss_bytes()),
                  format_bytes(memory.peak_rss_bytes())});
  return format_table(std::move(rows));
}

std::vector<std::string> out_of_memory_table(const v1::OutOfMemory& refusal) {
  Rows rows{{absl::StrCat(refusal.space(), " memory of rank ", refusal.memory().rank()), "block",
             "allocated in", ">bytes"}};
  int64_t rest = 0;
  for (int i = 0; i < refusal.cells_size(); ++i) {
    const v1::MemoryCell& cell = refusal.cells(i);
    if (rows.size() > kCellsOfRefusal) {
      rest += cell.bytes();
      continue;
    }
    rows.push_back(
        {absl::StrCat("  ", cell.owner()), cell.block(), cell.phase(), format_bytes(cell.bytes())});
  }
  if (rest > 0) rows.push_back({"  the rest", "", "", format_bytes(rest)});
  const v1::MemoryCell& asked = refusal.requested();
  rows.push_back({absl::StrCat("  refused: ", asked.owner()), asked.block(), asked.phase(),
                  format_bytes(asked.bytes())});
  std::vector<std::string> lines = format_table(std::move(rows));
  lines.push_back("`tessera plan JOB.yaml` shows which memory techniques would make the job fit");
  return lines;
}

}  // namespace tessera::cli
