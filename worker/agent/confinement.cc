#include "worker/agent/confinement.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "proto/spec/rules.h"

namespace tessera::agent {
namespace {

namespace fs = std::filesystem;

// Linux 6.2; the headers of Debian 12 are older.
constexpr uint64_t kTruncate = 1ULL << 14;

// The kernel says so where a directory was moved while it looked.
constexpr int kMaxTries = 64;

// Of a server's address that is a path.
constexpr std::string_view kSocket = "unix://";

constexpr uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr uint64_t kRun = kRead | LANDLOCK_ACCESS_FS_EXECUTE;
constexpr uint64_t kWrite =
    LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |
    LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
    LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK |
    LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_REFER | kTruncate;
// What a right to a single file can be about.
constexpr uint64_t kOfFiles = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                              LANDLOCK_ACCESS_FS_EXECUTE | kTruncate;

struct Grant {
  const char* path;
  uint64_t access;
};

// What programs need of the system. Of /etc only what says how to find hosts and libraries; of /dev
// no disks. Other processes in /proc are closed to a confined one by the kernel.
constexpr Grant kSystem[] = {{"/usr", kRun},
                             {"/lib", kRun},
                             {"/lib64", kRun},
                             {"/bin", kRun},
                             {"/etc/ld.so.cache", kRead},
                             {"/etc/hosts", kRead},
                             {"/etc/host.conf", kRead},
                             {"/etc/gai.conf", kRead},
                             {"/etc/resolv.conf", kRead},
                             {"/etc/nsswitch.conf", kRead},
                             {"/etc/localtime", kRead},
                             {"/etc/ssl/certs", kRead},
                             {"/proc", kRead},
                             {"/sys", kRead},
                             {"/dev/null", kRead | kWrite},
                             {"/dev/zero", kRead},
                             {"/dev/random", kRead},
                             {"/dev/urandom", kRead},
                             {"/dev/shm", kRead | kWrite}};

UniqueFd open_path(const fs::path& path) {
  return UniqueFd(::open(path.c_str(), O_PATH | O_CLOEXEC));
}

// The rights that this kernel knows, of those here; 0: it has no Landlock.
uint64_t known_rights() {
  const long version =
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (version < 1) return 0;
  uint64_t rights = kRun | kWrite;
  if (version < 2) rights &= ~uint64_t{LANDLOCK_ACCESS_FS_REFER};
  if (version < 3) rights &= ~kTruncate;
  return rights;
}

bool grant(int ruleset, const UniqueFd& what, uint64_t access) {
  struct stat info{};
  if (::fstat(what.get(), &info) != 0) return false;
  landlock_path_beneath_attr rule{};
  rule.allowed_access = S_ISDIR(info.st_mode) ? access : access & kOfFiles;
  rule.parent_fd = what.get();
  return ::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
}

bool grant_system(int ruleset, uint64_t known) {
  for (const Grant& system : kSystem) {
    const UniqueFd what = open_path(system.path);
    if (what.valid() && !grant(ruleset, what, system.access & known)) return false;
  }
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator("/dev", ignored)) {
    if (!device.path().filename().string().starts_with("nvidia")) continue;
    const UniqueFd what = open_path(device.path());
    if (what.valid() && !grant(ruleset, what, (kRead | kWrite) & known)) return false;
  }
  return true;
}

// The part of a pattern of files before its first wildcard.
fs::path without_pattern(const fs::path& path) {
  fs::path plain;
  for (const fs::path& part : path) {
    if (part.string().find_first_of("*?[") != std::string::npos) break;
    plain /= part;
  }
  return plain;
}

// Beside the files its servers' sockets: who may be connected to is nothing that a ruleset is
// about.
std::vector<spec::NamedPath> paths_of(const v1::JobSpec& spec) {
  std::vector<spec::NamedPath> paths = spec::paths_of(spec);
  for (int i = 0; i < spec.reward_funcs_size(); ++i) {
    const std::string& address = spec.reward_funcs(i).server().address();
    if (!address.starts_with(kSocket)) continue;
    paths.push_back(
        {absl::StrCat("reward_funcs[", i, "].server.address"), address.substr(kSocket.size())});
  }
  return paths;
}

std::vector<spec::NamedPath> paths_of(const v1::GenerateRequest& request) {
  std::vector<spec::NamedPath> paths{{"model", request.model()}};
  if (!request.tokenizer().empty()) paths.push_back({"tokenizer", request.tokenizer()});
  return paths;
}

std::vector<spec::NamedPath> paths_of(const v1::Probe& probe) {
  switch (probe.kind_case()) {
    case v1::Probe::kCheck:
      return paths_of(probe.check());
    case v1::Probe::kPlan:
      return paths_of(probe.plan().spec());
    case v1::Probe::kProfile:
      return paths_of(probe.profile().spec());
    case v1::Probe::kGenerate:
      return paths_of(probe.generate());
    default:
      return {};
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Confinement>> Confinement::make(
    const ConfinementOptions& options) {
  const uint64_t known = known_rights();
  landlock_ruleset_attr handled{};
  handled.handled_access_fs = known;
  UniqueFd ruleset(known == 0 ? -1
                              : static_cast<int>(::syscall(SYS_landlock_create_ruleset, &handled,
                                                           sizeof handled, 0)));
  if (!ruleset.valid()) {
    return absl::FailedPreconditionError(
        "--allow-path takes a kernel with Landlock (Linux 5.13 or later, with landlock among the "
        "security modules that it starts with)");
  }
  std::shared_ptr<Confinement> confinement(new Confinement(std::move(ruleset)));
  const int rules = confinement->ruleset();
  bool granted = grant_system(rules, known);
  const auto grant_all = [&](const std::vector<fs::path>& paths, uint64_t access) {
    for (const fs::path& path : paths) granted &= grant(rules, open_path(path), access & known);
  };
  grant_all(options.programs, kRun);
  grant_all(options.work, kRead | kWrite);
  const auto allow = [&](const std::vector<fs::path>& paths, uint64_t access, const char* flag) {
    for (const fs::path& path : paths) {
      UniqueFd fd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      if (!fd.valid()) {
        return absl::InvalidArgumentError(absl::StrCat(
            flag, " is \"", path.string(), "\", must be a directory: ", std::strerror(errno)));
      }
      granted &= grant(rules, fd, access & known);
      confinement->roots_.push_back({path.lexically_normal(), std::move(fd)});
    }
    return absl::OkStatus();
  };
  if (auto status = allow(options.allowed, kRead | kWrite, "--allow-path"); !status.ok())
    return status;
  if (auto status = allow(options.readable, kRun, "--allow-read"); !status.ok()) return status;
  if (!granted) return errno_status("make the ruleset of --allow-path");
  return confinement;
}

bool Confinement::leads_beneath(const Root& root, const fs::path& path) const {
  fs::path rest = path.lexically_relative(root.path);
  if (rest.empty() || *rest.begin() == "..") return false;
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  for (int tries = 0; tries < kMaxTries;) {
    const std::string name = rest.empty() ? "." : rest.string();
    const UniqueFd found(
        static_cast<int>(::syscall(SYS_openat2, root.fd.get(), name.c_str(), &how, sizeof how)));
    if (found.valid()) return true;
    if (errno == EAGAIN) {
      ++tries;
      continue;
    }
    // What is not there yet, as a job's output: its directory must lie there.
    if ((errno != ENOENT && errno != ENOTDIR) || name == ".") return false;
    rest = rest.parent_path();
  }
  return false;
}

absl::Status Confinement::check(const v1::Probe& probe, std::string& field) const {
  for (const spec::NamedPath& named : paths_of(probe)) {
    const fs::path path = without_pattern(fs::path(named.value).lexically_normal());
    const bool is_allowed =
        std::ranges::any_of(roots_, [&](const Root& root) { return leads_beneath(root, path); });
    if (is_allowed) continue;
    field = named.field;
    return absl::InvalidArgumentError(absl::StrCat(
        named.field, " is \"", named.value, "\", must lie, links followed, in one of ",
        absl::StrJoin(roots_, ", ",
                      [](std::string* out, const Root& root) { out->append(root.path.string()); }),
        " (--allow-path of the agent)"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::agent
