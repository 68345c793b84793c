#include "worker/trainer/rollout_recorder.h"

#include <cstdio>
#include <string>

#include "worker/checkpoint/durable_files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "generation-";

bool is_recorded(const fs::path& path) {
  return path.filename().string().starts_with(kPrefix) && path.extension() == ".jsonl";
}

}  // namespace

fs::path RolloutRecorder::path_of(int64_t epoch, int64_t number) const {
  char name[64];
  std::snprintf(name, sizeof name, "%s%06lld-%09lld.jsonl", kPrefix, static_cast<long long>(epoch),
                static_cast<long long>(number));
  return directory_ / name;
}

bool RolloutRecorder::is_empty() const {
  if (!fs::exists(directory_)) return true;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (is_recorded(entry.path())) return false;
  }
  return true;
}

void RolloutRecorder::begin(int64_t epoch, int64_t number) const {
  fs::create_directories(directory_);
  const fs::path first = path_of(epoch, number);
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (is_recorded(entry.path()) && entry.path().filename() >= first.filename())
      fs::remove(entry.path());
  }
}

void RolloutRecorder::write(int64_t epoch, int64_t number, std::string_view lines) const {
  const fs::path path = path_of(epoch, number);
  const fs::path beside = temporary_name(path);
  fs::remove(beside);
  write_durably(beside, lines);
  fs::rename(beside, path);
  sync_directory(directory_);
}

}  // namespace tessera
