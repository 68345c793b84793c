#include "worker/agent/oom_watch.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include <string>
#include <system_error>
#include <utility>

#include "worker/agent/file_util.h"

namespace tessera::agent {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = 64 << 10;

// The counter's file; empty when the group or its files cannot be seen from here.
fs::path counter_file() {
  const absl::StatusOr<std::string> groups = read_file("/proc/self/cgroup", kMaxFileBytes);
  if (!groups.ok()) return {};
  for (absl::string_view line : absl::StrSplit(*groups, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    fs::path file;
    if (parts[1] == "memory") {
      file = fs::path("/sys/fs/cgroup/memory" + parts[2]) / "memory.oom_control";
    } else if (parts[0] == "0") {
      file = fs::path("/sys/fs/cgroup" + parts[2]) / "memory.events";
    }
    std::error_code error;
    if (!file.empty() && fs::exists(file, error)) return file;
  }
  return {};
}

}  // namespace

OomWatch::OomWatch() : OomWatch(counter_file()) {}

OomWatch::OomWatch(fs::path file) : file_(std::move(file)) { last_ = before_last_ = count(); }

void OomWatch::tick() {
  before_last_ = last_;
  last_ = count();
}

int64_t OomWatch::count() const {
  if (file_.empty()) return 0;
  const absl::StatusOr<std::string> text = read_file(file_, kMaxFileBytes);
  if (!text.ok()) return 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    int64_t count = 0;
    if (absl::ConsumePrefix(&line, "oom_kill ") && absl::SimpleAtoi(line, &count)) return count;
  }
  return 0;
}

}  // namespace tessera::agent
