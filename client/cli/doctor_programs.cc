// Programs and directories.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/cli/child_process.h"
#include "client/cli/doctor.h"
#include "client/cli/format.h"
#include "client/cli/state_dir.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Level = Finding::Level;

// LibTorch takes its time from a cold disk.
constexpr int kStartTimeoutMs = 30'000;
constexpr double kLittleSpace = 20.0 * (1 << 30);
constexpr double kNoSpace = 1.0 * (1 << 30);

// How `program --help` ended. Empty: well.
std::string try_start(const fs::path& program) {
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const auto pid = start_process({.program = program,
                                  .arguments = {"--help"},
                                  .log = "/dev/null",
                                  .output = nowhere,
                                  .ends_with_parent = true});
  if (nowhere >= 0) close(nowhere);
  if (!pid.ok()) return std::string(pid.status().message());
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, *pid, 0));
  pollfd ended{.fd = descriptor, .events = POLLIN, .revents = 0};
  const bool in_time = descriptor < 0 || poll(&ended, 1, kStartTimeoutMs) > 0;
  if (!in_time) kill(*pid, SIGKILL);
  if (descriptor >= 0) close(descriptor);
  int status = 0;
  waitpid(*pid, &status, 0);
  if (!in_time) return "does not end";
  // Programs without options answer --help with their usage, and 2.
  const bool is_good = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2);
  return is_good ? "" : absl::StrCat("ended with ", describe_wait_status(status));
}

Finding look_at_program(const std::string& name, const fs::path& path, bool is_needed) {
  Finding finding{.name = name, .level = Level::kOk, .detail = path.string(), .mend = ""};
  const Level bad = is_needed ? Level::kProblem : Level::kWarning;
  std::error_code error;
  if (!fs::exists(path, error)) {
    finding.level = bad;
    finding.detail += ": there is no such file";
    finding.mend = name == "tessera-trainer"
                       ? "build it (`make build`), or name another with --trainer"
                       : "build it (`make build`), and keep the programs in one folder";
    return finding;
  }
  const std::string failure = try_start(path);
  if (failure.empty()) return finding;
  finding.level = bad;
  finding.detail += ": it does not start: " + failure;
  finding.mend = absl::StrCat("run `", path.string(),
                              " --help` to see why; `ldd` lists libraries that are missing");
  return finding;
}

// The directory, or the closest one above it that is there.
fs::path existing(fs::path path) {
  std::error_code error;
  while (!fs::exists(path, error) && path.has_parent_path() && path != path.parent_path()) {
    path = path.parent_path();
  }
  return path;
}

std::string permissions_of(const fs::path& path) {
  std::error_code error;
  const auto perms = fs::status(path, error).permissions();
  std::string text = "000";
  for (int i = 0; i < 3; ++i) {
    text[i] = static_cast<char>('0' + ((static_cast<int>(perms) >> (6 - 3 * i)) & 7));
  }
  return text;
}

Finding look_at_directory(const std::string& name, const fs::path& path, const char* choose) {
  Finding finding{.name = name, .level = Level::kOk, .detail = path.string(), .mend = ""};
  if (path.empty()) {
    finding.level = Level::kProblem;
    finding.detail = "there is no home directory to keep it in";
    finding.mend = choose;
    return finding;
  }
  std::error_code error;
  const fs::path there = existing(path);
  if (!fs::is_directory(there, error)) {
    finding.level = Level::kProblem;
    finding.detail += absl::StrCat(": ", there.string(), " is no directory");
    finding.mend = absl::StrCat("move it away, or ", choose);
  } else if (access(there.c_str(), R_OK | W_OK | X_OK) != 0) {
    finding.level = Level::kProblem;
    finding.detail += absl::StrCat(": ", there == path ? "" : absl::StrCat(there.string(), " "),
                                   "cannot be written (mode ", permissions_of(there),
                                   "): ", std::strerror(errno));
    finding.mend = absl::StrCat("`chown` or `chmod u+rwx ", there.string(), "`, or ", choose);
  } else {
    finding.detail += there == path ? absl::StrCat(" (mode ", permissions_of(path), ")")
                                    : ", made when it is needed";
  }
  return finding;
}

// A rank writes there, and so does anyone who may: jobs name programs and paths.
void warn_of_others(const fs::path& path, Finding& finding) {
  std::error_code error;
  if (finding.level != Level::kOk || !fs::exists(path, error)) return;
  const auto perms = fs::status(path, error).permissions();
  if ((perms & (fs::perms::group_write | fs::perms::others_write)) == fs::perms::none) return;
  finding.level = Level::kWarning;
  finding.detail += ": others may write to it";
  finding.mend = absl::StrCat("`chmod go-w ", path.string(), "`");
}

Finding look_at_space(const std::string& name, const fs::path& path) {
  Finding finding{.name = name, .level = Level::kOk, .detail = "", .mend = ""};
  const fs::path there = existing(path);
  struct statvfs space{};
  if (path.empty() || statvfs(there.c_str(), &space) != 0) {
    finding.detail = "not known";
    return finding;
  }
  const double free = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  finding.detail =
      absl::StrCat(format_bytes(static_cast<int64_t>(free)), " free in ", there.string());
  if (free >= kLittleSpace) return finding;
  finding.level = free < kNoSpace ? Level::kProblem : Level::kWarning;
  finding.mend =
      "make room: a checkpoint takes 12 bytes a parameter, and data.cache_max_bytes bounds the "
      "cache";
  return finding;
}

}  // namespace

std::vector<Finding> look_at_programs(const DoctorOptions& options) {
  const fs::path trainer =
      options.trainer.empty() ? options.programs / "tessera-trainer" : options.trainer;
  return {{.name = "tessera", .level = Level::kOk, .detail = options.version, .mend = ""},
          look_at_program("tesserad", options.programs / "tesserad", true),
          look_at_program("tessera-agent", options.programs / "tessera-agent", true),
          look_at_program("tessera-trainer", trainer, true),
          look_at_program("tessera-data", options.programs / "tessera-data", false),
          look_at_program("tessera-rewards", options.programs / "tessera-rewards", false)};
}

std::vector<Finding> look_at_directories(const DoctorOptions& options) {
  Finding state = look_at_directory("state directory", options.state_dir,
                                    "choose another with --state-dir or TESSERA_STATE_DIR");
  const std::string socket = StateDir(options.state_dir).address().substr(strlen("unix:"));
  if (state.level == Level::kOk && socket.size() >= sizeof(sockaddr_un::sun_path)) {
    state.level = Level::kProblem;
    state.detail += absl::StrCat(": too long for a socket's path (", socket.size(), " characters)");
    state.mend = "choose a shorter one with --state-dir or TESSERA_STATE_DIR";
  }
  warn_of_others(options.state_dir, state);
  Finding cache =
      look_at_directory("data cache", options.cache_dir,
                        "choose another with XDG_CACHE_HOME, or data.cache_dir of a job");
  warn_of_others(options.cache_dir, cache);
  return {state, look_at_space("space for state", options.state_dir), cache,
          look_at_space("space for cache", options.cache_dir)};
}

}  // namespace tessera::cli
