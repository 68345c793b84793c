#include "worker/agent/devices.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>

namespace tessera::agent {
namespace {

// The part of NVML's stable interface that is needed, declared here: its header and library come
// with the driver, which may be absent.
struct Nvml {
  struct MemoryInfo {
    unsigned long long total, free, used;
  };
  using Device = void*;

  int (*init)();
  int (*shutdown)();
  int (*device_count)(unsigned int*);
  int (*device_by_index)(unsigned int, Device*);
  int (*device_name)(Device, char*, unsigned int);
  int (*memory_info)(Device, MemoryInfo*);
};

template <typename Function>
bool find_symbol(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool load(void* library, Nvml& nvml) {
  return find_symbol(library, "nvmlInit_v2", nvml.init) &&
         find_symbol(library, "nvmlShutdown", nvml.shutdown) &&
         find_symbol(library, "nvmlDeviceGetCount_v2", nvml.device_count) &&
         find_symbol(library, "nvmlDeviceGetHandleByIndex_v2", nvml.device_by_index) &&
         find_symbol(library, "nvmlDeviceGetName", nvml.device_name) &&
         find_symbol(library, "nvmlDeviceGetMemoryInfo", nvml.memory_info);
}

v1::Device make_device(int index, const char* kind, std::string model, int64_t memory_bytes) {
  v1::Device device;
  device.set_index(index);
  device.set_kind(kind);
  device.set_model(std::move(model));
  device.set_memory_bytes(memory_bytes);
  return device;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    absl::string_view text = line;
    if (!absl::ConsumePrefix(&text, "model name")) continue;
    text.remove_prefix(std::min(text.find(':') + 1, text.size()));
    return std::string(absl::StripAsciiWhitespace(text));
  }
  return "cpu";
}

}  // namespace

std::vector<v1::Device> cuda_devices() {
  const std::unique_ptr<void, int (*)(void*)> library(
      ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), &::dlclose);
  Nvml nvml;
  if (!library || !load(library.get(), nvml) || nvml.init() != 0) return {};
  std::vector<v1::Device> devices;
  unsigned int count = 0;
  if (nvml.device_count(&count) != 0) count = 0;
  for (unsigned int i = 0; i < count; ++i) {
    Nvml::Device handle;
    char name[96] = "";  // NVML_DEVICE_NAME_V2_BUFFER_SIZE
    Nvml::MemoryInfo memory{};
    // A GPU that does not answer is not offered.
    if (nvml.device_by_index(i, &handle) != 0 || nvml.memory_info(handle, &memory) != 0) continue;
    nvml.device_name(handle, name, sizeof(name));
    devices.push_back(
        make_device(static_cast<int>(i), "cuda", name, static_cast<int64_t>(memory.total)));
  }
  nvml.shutdown();
  return devices;
}

std::vector<v1::Device> cpu_devices(int slots, int first_index) {
  const int64_t memory_bytes =
      static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  const std::string model = cpu_model();
  std::vector<v1::Device> devices;
  for (int i = 0; i < slots; ++i) {
    devices.push_back(make_device(first_index + i, "cpu", model, memory_bytes / slots));
  }
  return devices;
}

absl::StatusOr<std::vector<v1::Device>> offered_devices(const std::string& cuda, int cpu_slots) {
  const std::vector<v1::Device> present =
      cuda == "none" ? std::vector<v1::Device>() : cuda_devices();
  std::vector<v1::Device> devices;
  if (cuda == "all") {
    devices = present;
  } else if (cuda != "none") {
    for (absl::string_view part : absl::StrSplit(cuda, ',')) {
      int index = -1;
      const bool number = absl::SimpleAtoi(part, &index);
      const auto found = std::ranges::find(present, index, &v1::Device::index);
      if (!number || found == present.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "\"", part, "\" is no CUDA device of this machine, which has ", present.size()));
      }
      devices.push_back(*found);
    }
  }
  const int first_cpu = present.empty() ? 0 : present.back().index() + 1;
  for (v1::Device& device : cpu_devices(cpu_slots, first_cpu)) devices.push_back(std::move(device));
  return devices;
}

}  // namespace tessera::agent
