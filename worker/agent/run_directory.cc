#include "worker/agent/run_directory.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/time/time.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <system_error>

#include "worker/agent/file_util.h"

namespace tessera::agent {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxJobIdBytes = 128;

bool names_a_directory(const std::string& job_id) {
  return !job_id.empty() && job_id.size() <= kMaxJobIdBytes && job_id[0] != '.' &&
         std::ranges::all_of(job_id, [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

std::vector<fs::path> entries(const fs::path& directory) {
  std::vector<fs::path> result;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    result.push_back(it->path());
  }
  std::ranges::sort(result);
  return result;
}

}  // namespace

absl::Status RankDirectory::create() const {
  if (absl::Status status = make_directories(path); !status.ok()) return status;
  if (::mkfifo(commands().c_str(), 0600) != 0 && errno != EEXIST) {
    return errno_status(absl::StrCat("make the FIFO ", commands().string()));
  }
  return absl::OkStatus();
}

absl::StatusOr<RunDirectory> RunDirectory::of(const fs::path& state_dir, const v1::RunId& id) {
  if (!names_a_directory(id.job_id()) || id.attempt() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("job \"", id.job_id(), "\", attempt ", id.attempt(), " is no run"));
  }
  return RunDirectory(id, state_dir / "runs" / id.job_id() / absl::StrCat(id.attempt()));
}

std::vector<RunDirectory> RunDirectory::list(const fs::path& state_dir) {
  std::vector<RunDirectory> runs;
  for (const fs::path& job : entries(state_dir / "runs")) {
    for (const fs::path& attempt : entries(job)) {
      v1::RunId id;
      id.set_job_id(job.filename().string());
      int number = 0;
      if (!absl::SimpleAtoi(attempt.filename().string(), &number)) continue;
      id.set_attempt(number);
      if (absl::StatusOr<RunDirectory> run = of(state_dir, id); run.ok()) runs.push_back(*run);
    }
  }
  return runs;
}

RankDirectory RunDirectory::rank(int rank) const {
  return RankDirectory{path_ / absl::StrCat("rank-", rank)};
}

absl::Status RunDirectory::renew_lease(spec::BootClock::time_point time) const {
  UniqueFd fd(::open(lease().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const timespec modified = absl::ToTimespec(absl::FromChrono(time.time_since_epoch()));
  const timespec times[] = {modified, modified};
  if (!fd.valid() || ::futimens(fd.get(), times) != 0) {
    return errno_status(absl::StrCat("renew ", lease().string()));
  }
  return absl::OkStatus();
}

void RunDirectory::remove() const {
  std::error_code error;
  fs::remove_all(path_, error);
  if (error) spdlog::warn("cannot delete {}: {}", path_.string(), error.message());
  // Fails, as it should, while another attempt is there.
  fs::remove(path_.parent_path(), error);
}

}  // namespace tessera::agent
