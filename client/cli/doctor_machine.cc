// The machine and what the system lets a process have.
#include <dlfcn.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/doctor.h"
#include "client/cli/format.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Level = Finding::Level;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;
// The coordinator has some for each watcher, a rank for each shard of a model and row of data.
constexpr rlim_t kFewFiles = 1024;
constexpr rlim_t kTooFewFiles = 256;
constexpr int64_t kLittleShared = 64 * kMiB;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int64_t> meminfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kib = 0;
    if (words.size() >= 2 && words[0] == name + ":" && absl::SimpleAtoi(words[1], &kib)) {
      return kib * 1024;
    }
  }
  return std::nullopt;
}

// A file of this process's control group (version 2), or of the one that a container sees as the
// root.
std::string cgroup_line(const char* name) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    absl::string_view path = line;
    if (!absl::ConsumePrefix(&path, "0::/")) continue;
    for (const fs::path& folder :
         {fs::path("/sys/fs/cgroup") / std::string(path), fs::path("/sys/fs/cgroup")}) {
      if (const std::string value = first_line(folder / name); !value.empty()) return value;
    }
  }
  return "";
}

Finding look_at_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
  Finding finding{.name = "cores", .level = Level::kOk, .detail = absl::StrCat(cores), .mend = ""};
  const std::vector<std::string> quota = absl::StrSplit(cgroup_line("cpu.max"), ' ');
  double most = 0;
  double period = 0;
  if (quota.size() == 2 && absl::SimpleAtod(quota[0], &most) &&
      absl::SimpleAtod(quota[1], &period) && period > 0 && most / period < cores) {
    finding.level = Level::kWarning;
    finding.detail += absl::StrCat(", of which the control group grants ", most / period);
    finding.mend = "set resources.cpu_threads to what is granted: ranks count all cores";
  }
  return finding;
}

Finding look_at_memory() {
  const int64_t total = meminfo("MemTotal").value_or(0);
  const int64_t available = meminfo("MemAvailable").value_or(0);
  Finding finding{
      .name = "memory",
      .level = Level::kOk,
      .detail = absl::StrCat(format_bytes(total), ", ", format_bytes(available), " free"),
      .mend = ""};
  int64_t most = 0;
  if (absl::SimpleAtoi(cgroup_line("memory.max"), &most) && most < total) {
    finding.detail += absl::StrCat("; the control group grants ", format_bytes(most));
    finding.mend =
        "set resources.device_memory below that: the kernel kills what goes beyond without a word";
    finding.level = Level::kWarning;
  } else if (available < kGiB) {
    finding.level = Level::kWarning;
    finding.mend = "end other programs, or set resources.device_memory";
  }
  return finding;
}

Finding look_at_overcommit() {
  const std::string mode = first_line("/proc/sys/vm/overcommit_memory");
  Finding finding{.name = "overcommit",
                  .level = Level::kOk,
                  .detail = mode.empty() ? "not known" : absl::StrCat("mode ", mode),
                  .mend = ""};
  if (mode != "2") return finding;
  finding.level = Level::kWarning;
  finding.detail += ": memory is refused that would never be touched";
  finding.mend = "`sysctl vm.overcommit_memory=0`";
  return finding;
}

std::vector<std::string> gpus_of_driver() {
  std::vector<std::string> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    std::ifstream file(entry.path() / "information");
    for (std::string line; std::getline(file, line);) {
      absl::string_view text = line;
      if (!absl::ConsumePrefix(&text, "Model:")) continue;
      models.emplace_back(absl::StripAsciiWhitespace(text));
    }
  }
  return models;
}

Finding look_at_gpus() {
  Finding finding{.name = "GPUs", .level = Level::kOk, .detail = "none", .mend = ""};
  const std::vector<std::string> models = gpus_of_driver();
  if (models.empty()) {
    std::error_code error;
    if (!fs::exists("/dev/nvidiactl", error)) return finding;
    finding.level = Level::kWarning;
    finding.detail = "there are devices, but the driver lists no GPU";
    finding.mend = "look at `nvidia-smi`";
    return finding;
  }
  finding.detail = absl::StrCat(models.size(), " x ", models[0], ", driver ",
                                first_line("/proc/driver/nvidia/version").substr(0, 64));
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) dlclose(library);
  if (library == nullptr || access("/dev/nvidiactl", R_OK | W_OK) != 0) {
    finding.level = Level::kProblem;
    finding.detail += library == nullptr ? "; libnvidia-ml.so.1 is missing: agents see no GPU"
                                         : "; /dev/nvidiactl may not be opened";
    finding.mend = library == nullptr
                       ? "install the driver's libraries, or run the container with them"
                       : "join the group that owns /dev/nvidia*";
  }
  return finding;
}

Finding look_at_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{.name = "open files",
                  .level = Level::kOk,
                  .detail = absl::StrCat("at most ", limit.rlim_cur),
                  .mend = ""};
  if (limit.rlim_cur >= kFewFiles) return finding;
  finding.level = limit.rlim_cur < kTooFewFiles ? Level::kProblem : Level::kWarning;
  finding.mend = absl::StrCat("`ulimit -n ", std::min<rlim_t>(limit.rlim_max, 65536),
                              "` before `tessera up`, or LimitNOFILE= of its unit");
  if (limit.rlim_max < kFewFiles) {
    finding.mend = "raise the hard limit: /etc/security/limits.conf, or LimitNOFILE= of the unit";
  }
  return finding;
}

// Pinned memory is locked by the driver, which does not ask; RDMA's is counted here.
Finding look_at_locked(bool has_gpus) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
  Finding finding{
      .name = "locked memory",
      .level = Level::kOk,
      .detail = unlimited
                    ? "unlimited"
                    : absl::StrCat("at most ", format_bytes(static_cast<int64_t>(limit.rlim_cur))),
      .mend = ""};
  if (unlimited || !has_gpus || limit.rlim_cur >= static_cast<rlim_t>(kGiB)) return finding;
  finding.level = Level::kWarning;
  finding.mend = "`ulimit -l unlimited`: InfiniBand between machines needs it";
  return finding;
}

Finding look_at_shared(bool has_gpus) {
  struct statvfs space{};
  Finding finding{.name = "/dev/shm", .level = Level::kOk, .detail = "none", .mend = ""};
  int64_t size = 0;
  if (statvfs("/dev/shm", &space) == 0) {
    size = static_cast<int64_t>(space.f_blocks) * static_cast<int64_t>(space.f_frsize);
    finding.detail = format_bytes(size);
  }
  if (size > kLittleShared) return finding;
  // NCCL's transport between GPUs of a machine; ranks on CPUs use sockets.
  finding.level = has_gpus ? Level::kProblem : Level::kOk;
  if (has_gpus) finding.mend = "run the container with --shm-size=1g or more, or --ipc=host";
  return finding;
}

Finding look_at_address_space() {
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  Finding finding{.name = "address space", .level = Level::kOk, .detail = "unlimited", .mend = ""};
  if (limit.rlim_cur == RLIM_INFINITY) return finding;
  finding.level = Level::kProblem;
  finding.detail = absl::StrCat("at most ", format_bytes(static_cast<int64_t>(limit.rlim_cur)));
  finding.mend = "`ulimit -v unlimited`: files are mapped, which takes address space, not memory";
  return finding;
}

}  // namespace

std::vector<Finding> look_at_machine() {
  return {look_at_cores(), look_at_memory(), look_at_overcommit(), look_at_gpus()};
}

std::vector<Finding> look_at_limits() {
  const bool has_gpus = !gpus_of_driver().empty();
  return {look_at_files(), look_at_locked(has_gpus), look_at_shared(has_gpus),
          look_at_address_space()};
}

}  // namespace tessera::cli
