#include "worker/planner/device_rates.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace tessera {
namespace {

// Of the peaks of data sheets, what matrix products and copies of a training step come to.
constexpr double kFlopsReached = 0.6;
constexpr double kBytesReached = 0.8;
constexpr double kOperatorSeconds = 5e-6;
constexpr double kDiskBytesPerSecond = 2e9;
constexpr int64_t kGB = 1'000'000'000;
constexpr int64_t kGiB = int64_t{1} << 30;

// Peaks in their data sheets' units: dense TFLOP/s, GB/s of memory, of the host link (PCIe, one
// way), and of links to other GPUs (NVLink, or PCIe again; one way).
struct Sheet {
  const char* name;
  const char* model;  // what its driver's name of it holds
  int64_t gib;
  double
      tflops_float32;  // TF32 where there are tensor cores for it: what LibTorch uses for products
  double tflops_bfloat16;
  double memory_gb, host_gb, link_gb;
};

// Sources: NVIDIA's product data sheets, of the year each came out.
constexpr std::array kSheets = {
    Sheet{"b200", "B200", 180, 1100, 2250, 8000, 64, 900},
    Sheet{"h200", "H200", 141, 494, 989, 4800, 64, 450},
    Sheet{"h100-pcie", "H100 PCIe", 80, 378, 756, 2000, 64, 300},
    Sheet{"h100", "H100", 80, 494, 989, 3350, 64, 450},
    Sheet{"a100-80gb", "A100-SXM4-80GB", 80, 156, 312, 2039, 32, 300},
    Sheet{"a100-40gb", "A100-SXM4-40GB", 40, 156, 312, 1555, 32, 300},
    Sheet{"a100", "A100", 80, 156, 312, 1935, 32, 300},
    Sheet{"l40s", "L40S", 48, 183, 362, 864, 32, 32},
    Sheet{"l40", "L40", 48, 90, 181, 864, 32, 32},
    Sheet{"a10", "A10", 24, 62, 125, 600, 32, 32},
    Sheet{"l4", "L4", 24, 60, 121, 300, 32, 32},
    Sheet{"rtx-4090", "RTX 4090", 24, 82, 165, 1008, 32, 32},
    Sheet{"rtx-3090", "RTX 3090", 24, 35, 71, 936, 32, 32},
};

DeviceRates rates_of(const Sheet& sheet) {
  DeviceRates rates;
  rates.name = sheet.name;
  rates.source = "NVIDIA's data sheet";
  rates.kind = "cuda";
  rates.memory_bytes = sheet.gib * kGiB;
  rates.flops_float32 = sheet.tflops_float32 * 1e12 * kFlopsReached;
  rates.flops_bfloat16 = sheet.tflops_bfloat16 * 1e12 * kFlopsReached;
  rates.memory_bytes_per_second = sheet.memory_gb * kGB * kBytesReached;
  rates.host_bytes_per_second = sheet.host_gb * kGB * kBytesReached;
  rates.link_bytes_per_second = sheet.link_gb * kGB * kBytesReached;
  rates.disk_bytes_per_second = kDiskBytesPerSecond;
  rates.operator_seconds = kOperatorSeconds;
  return rates;
}

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Small letters and digits only: "NVIDIA A100-SXM4" and "a100 sxm4" are alike.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (is_alnum(c)) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// Whether a name holds a model as words of its own, whatever stands between them: "RTX A1000" is no
// A100, "GH200" no H200.
bool names(std::string_view name, std::string_view model) {
  const std::string wanted = plain(model);
  for (size_t begin = 0; begin < name.size(); ++begin) {
    if (begin > 0 && is_alnum(name[begin - 1])) continue;
    size_t at = begin, matched = 0;
    for (; at < name.size() && matched < wanted.size(); ++at) {
      if (!is_alnum(name[at])) continue;
      if (plain(name.substr(at, 1))[0] != wanted[matched]) break;
      ++matched;
    }
    if (matched == wanted.size() && (at == name.size() || !is_alnum(name[at]))) return true;
  }
  return false;
}

}  // namespace

std::span<const DeviceRates> known_devices() {
  static const std::vector<DeviceRates> devices = [] {
    std::vector<DeviceRates> all;
    for (const Sheet& sheet : kSheets) all.push_back(rates_of(sheet));
    return all;
  }();
  return devices;
}

std::optional<DeviceRates> find_device(std::string_view name) {
  const std::string wanted = plain(name);
  for (const Sheet& sheet : kSheets) {
    if (plain(sheet.name) == wanted) return rates_of(sheet);
  }
  // The first whose model is in the name: longer ones stand before those that they begin with.
  for (const Sheet& sheet : kSheets) {
    if (names(name, sheet.model)) return rates_of(sheet);
  }
  return std::nullopt;
}

}  // namespace tessera
