#include <cinttypes>
#include <cstdio>
#include <memory>
#include <system_error>

#include "worker/memory/ledger.h"

namespace tessera {

ProcessMemory process_memory() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/status", "re"), std::fclose);
  if (!file) throw std::system_error(errno, std::generic_category(), "/proc/self/status");
  ProcessMemory memory;
  char line[256];
  while (std::fgets(line, sizeof line, file.get())) {
    int64_t kib = 0;
    if (std::sscanf(line, "VmRSS: %" SCNd64, &kib) == 1) memory.rss_bytes = kib * 1024;
    if (std::sscanf(line, "VmHWM: %" SCNd64, &kib) == 1) memory.peak_rss_bytes = kib * 1024;
  }
  return memory;
}

}  // namespace tessera
