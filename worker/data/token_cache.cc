#include "worker/data/token_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

#include "worker/data/content_hash.h"
#include "worker/data/host_lock.h"
#include "worker/errors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kField = "data.cache_dir";
constexpr size_t kReadBytes = size_t{4} << 20;
// A file changed within this long could be changed again without its time telling.
constexpr int64_t kTrustedAgeNs = 2'000'000'000;

fs::path entry_path(const fs::path& directory, const std::string& key) {
  return directory / "tokens" / key;
}

fs::path part_path(const fs::path& directory, const std::string& key) {
  return directory / "tokens" / (key + ".part");
}

fs::path lock_path(const fs::path& directory, const std::string& key) {
  return directory / "locks" / key;
}

int64_t nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

// What changes when a file's contents do.
std::string version_of(const struct stat& status) {
  std::ostringstream text;
  text << status.st_dev << ' ' << status.st_ino << ' ' << status.st_size << ' '
       << nanoseconds(status.st_mtim) << ' ' << nanoseconds(status.st_ctim);
  return text.str();
}

int64_t bytes_in(const fs::path& folder) {
  int64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; it != end; it.increment(error)) {
    std::error_code gone;
    const auto size = it->file_size(gone);
    if (!gone) total += static_cast<int64_t>(size);
  }
  return total;
}

void sync_folder(const fs::path& path) {
  const FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open() || ::fsync(folder.get()) != 0) {
    throw std::system_error(errno, std::generic_category(), "fsync " + path.string());
  }
}

}  // namespace

TokenCache::TokenCache(CacheOptions options, const Reports& reports)
    : options_(std::move(options)), reports_(reports) {
  for (const char* folder : {"tokens", "locks", "hashes"}) {
    std::error_code error;
    fs::create_directories(options_.directory / folder, error);
    if (error || ::access((options_.directory / folder).c_str(), W_OK | X_OK) != 0) {
      throw UserError(kField,
                      std::string(kField) + " " + options_.directory.string() +
                          " cannot be written: " + (error ? error.message() : "permission denied"));
    }
  }
}

std::unique_ptr<TokenStore> TokenCache::get(const std::string& key,
                                            const std::function<void(TokenStoreWriter&)>& make) {
  if (auto found = find(key)) return found;
  try {
    const HostLock lock = HostLock::wait(lock_path(options_.directory, key), reports_.alive);
    if (auto found = find(key)) return found;
    auto made = make_entry(key, make);
    evict(key);
    return made;
  } catch (const std::system_error& error) {
    throw UserError(kField, std::string(kField) + " " + options_.directory.string() +
                                " cannot be written: " + error.what());
  }
}

std::unique_ptr<TokenStore> TokenCache::find(const std::string& key) {
  const fs::path path = entry_path(options_.directory, key);
  std::string problem;
  auto store = TokenStore::open(path, problem);
  if (!problem.empty()) reports_.note(path.string() + " is made again: " + problem);
  if (store != nullptr) ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return store;
}

// With the lock of `key` held: nobody else writes the part or the entry.
std::unique_ptr<TokenStore> TokenCache::make_entry(
    const std::string& key, const std::function<void(TokenStoreWriter&)>& make) {
  const fs::path part = part_path(options_.directory, key);
  const fs::path entry = entry_path(options_.directory, key);
  fs::remove_all(part);
  fs::create_directory(part);
  try {
    TokenStoreWriter writer(part);
    make(writer);
    writer.finish();
    fs::remove_all(entry);  // a damaged one
    fs::rename(part, entry);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(part, ignored);
    throw;
  }
  sync_folder(entry.parent_path());
  auto store = find(key);
  if (store == nullptr) throw std::system_error(EIO, std::generic_category(), entry.string());
  return store;
}

// Least recently used first. Processes that have an entry open keep it until they end. What a dead
// maker left goes too.
void TokenCache::evict(const std::string& newest) {
  struct Entry {
    fs::path path;
    fs::file_time_type used;
    int64_t bytes;
  };
  std::vector<Entry> entries;
  int64_t total = 0;
  for (const auto& item : fs::directory_iterator(options_.directory / "tokens")) {
    const fs::path& path = item.path();
    std::error_code gone;
    const bool is_part = path.extension() == ".part";
    const fs::file_time_type used =
        is_part ? fs::file_time_type::min() : fs::last_write_time(path, gone);
    if (gone || path.stem() == newest) continue;
    entries.push_back({path, used, bytes_in(path)});
    total += entries.back().bytes;
  }
  total += bytes_in(entry_path(options_.directory, newest));
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    const bool is_part = entry.path.extension() == ".part";
    if (!is_part && (options_.max_bytes == 0 || total <= options_.max_bytes)) return;
    const auto lock = HostLock::try_now(lock_path(options_.directory, entry.path.stem().string()));
    if (!lock) continue;  // its maker is at work
    std::error_code gone;
    fs::remove_all(entry.path, gone);
    total -= entry.bytes;
  }
}

std::string TokenCache::content_hash(const RecordFile& file) {
  const FileDescriptor opened = open_regular_file(file.path, file.field);
  struct stat status{};
  if (::fstat(opened.get(), &status) != 0) file.fail("cannot be read");
  const std::string version = version_of(status);
  ContentHash name;
  name.add(fs::absolute(file.path).string());
  const fs::path note = options_.directory / "hashes" / name.hex();
  std::string noted_version, noted_hash;
  std::ifstream noted(note);
  if (std::getline(noted, noted_version) && std::getline(noted, noted_hash) &&
      noted_version == version) {
    return noted_hash;
  }

  ContentHash contents;
  std::vector<char> buffer(kReadBytes);
  int64_t offset = 0;
  while (const size_t count = read_at(opened.get(), buffer.data(), buffer.size(), offset)) {
    contents.update(buffer.data(), count);
    offset += static_cast<int64_t>(count);
    reports_.alive();
  }
  const std::string hash = contents.hex();

  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const int64_t changed = std::max(nanoseconds(status.st_mtim), nanoseconds(status.st_ctim));
  if (nanoseconds(now) - changed < kTrustedAgeNs) return hash;
  // Written beside and renamed: several processes may note the same file.
  const fs::path part = note.string() + "." + std::to_string(::getpid());
  std::ofstream(part) << version << '\n' << hash << '\n';
  std::error_code ignored;
  fs::rename(part, note, ignored);
  return hash;
}

}  // namespace tessera
