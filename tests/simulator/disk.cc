#include "tests/simulator/disk.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace tessera::server::simulator {
namespace {

constexpr int64_t kSectorBytes = 512;

// Of all connections that are opened; an extension has no data of its own.
int checkpoint_pages_now = 0;

int set_checkpoint_pages(sqlite3* database, const char**, const sqlite3_api_routines*) {
  return sqlite3_wal_autocheckpoint(database, checkpoint_pages_now);
}

void (*const kSetCheckpointPages)() = reinterpret_cast<void (*)()>(set_checkpoint_pages);

void apply(std::string& content, int64_t offset, const char* bytes, int64_t count) {
  const auto end = static_cast<size_t>(offset + count);
  if (content.size() < end) content.resize(end);
  content.replace(static_cast<size_t>(offset), static_cast<size_t>(count), bytes,
                  static_cast<size_t>(count));
}

}  // namespace

Disk::Disk(World& world, int checkpoint_pages)
    : world_(world),
      vfs_(make_vfs(*this, *sqlite3_vfs_find(nullptr))),
      system_vfs_(sqlite3_vfs_find(nullptr)) {
  checkpoint_pages_now = checkpoint_pages;
  sqlite3_auto_extension(kSetCheckpointPages);
  sqlite3_vfs_register(vfs_.get(), /*makeDflt=*/1);
  sqlite3_randomness(0, nullptr);  // begins anew, from bytes_
}

Disk::~Disk() {
  sqlite3_cancel_auto_extension(kSetCheckpointPages);
  sqlite3_vfs_unregister(vfs_.get());
  sqlite3_vfs_register(system_vfs_, /*makeDflt=*/1);
}

bool Disk::fails_now() {
  ++num_operations_;
  if (dead_ || operations_left_ < 0) return false;
  return operations_left_-- == 0;
}

void Disk::kill() {
  if (std::exchange(dead_, true)) return;
  for (const auto& [name, file] : files_) image_[name] = file->content_;
}

void Disk::fail_power() {
  if (std::exchange(dead_, true)) return;
  for (const auto& [name, file] : files_) {
    if (file->is_named_ || world_.chance(0.5)) image_[name] = survivor(*file);
  }
  for (const auto& [name, file] : deleted_) {
    if (world_.chance(0.5)) image_.try_emplace(name, survivor(*file));
  }
}

void Disk::fail_power_after(int64_t num_operations) { operations_left_ = num_operations; }

std::string Disk::survivor(const File& file) {
  const auto survival = static_cast<Survival>(world_.between(0, 2));
  const int64_t num_changes = std::ssize(file.changes_);
  const int64_t point = num_changes == 0 ? 0 : world_.between(0, num_changes - 1);
  std::string content = file.synced_;
  if (survival == Survival::kNothing) return content;
  for (int64_t i = 0; i < num_changes; ++i) {
    const bool in_order = survival == Survival::kUpToAPoint;
    if (in_order && i > point) break;
    const File::Change& change = file.changes_[static_cast<size_t>(i)];
    const bool whole = in_order && i < point;
    if (change.is_truncation) {
      if (whole || world_.chance(0.5)) content.resize(static_cast<size_t>(change.offset));
      continue;
    }
    for (int64_t begin = 0, next = 0; begin < std::ssize(change.bytes); begin = next) {
      const int64_t at = change.offset + begin;
      next = std::min(begin + kSectorBytes - at % kSectorBytes, std::ssize(change.bytes));
      if (!whole && world_.chance(0.5)) continue;
      const bool torn = !whole && world_.chance(0.1);
      const int64_t count = torn ? world_.between(0, next - begin) : next - begin;
      apply(content, at, change.bytes.data() + begin, count);
    }
  }
  return content;
}

void Disk::restart() {
  for (const auto& [name, file] : files_) {
    if (file.use_count() > 1) throw std::logic_error("file " + name + " is open");
  }
  kill();  // an orderly end
  files_.clear();
  deleted_.clear();
  for (auto& [name, content] : std::exchange(image_, {})) {
    auto file = std::make_shared<File>(*this);
    file->content_ = file->synced_ = std::move(content);
    file->is_named_ = true;
    files_[name] = std::move(file);
  }
  operations_left_ = -1;
  dead_ = false;
}

std::shared_ptr<Disk::File> Disk::open(const std::string& name, bool create) {
  if (name.empty()) return std::make_shared<File>(*this);  // a temporary one
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  if (!create) return nullptr;
  return files_[name] = std::make_shared<File>(*this);
}

void Disk::remove(const std::string& name, bool sync) {
  const auto found = files_.find(name);
  if (found == files_.end()) return;
  deleted_[name] = found->second;
  files_.erase(found);
  if (fails_now()) fail_power();
  if (sync) settle_names();
}

void Disk::settle_names() {
  deleted_.clear();
  for (const auto& [name, file] : files_) file->is_named_ = true;
}

bool Disk::exists(const std::string& name) const {
  const auto found = files_.find(name);
  return found != files_.end() && !found->second->content_.empty();
}

void Disk::File::write(int64_t offset, const void* bytes, int64_t count) {
  const auto* data = static_cast<const char*>(bytes);
  const bool fails = disk_.fails_now();
  apply(content_, offset, data, count);
  changes_.push_back({offset, std::string(data, static_cast<size_t>(count))});
  if (fails) disk_.fail_power();
}

void Disk::File::truncate(int64_t size) {
  const bool fails = disk_.fails_now();
  content_.resize(static_cast<size_t>(size));
  changes_.push_back({size, {}, /*is_truncation=*/true});
  if (fails) disk_.fail_power();
}

void Disk::File::sync() {
  if (disk_.fails_now()) disk_.fail_power();
  for (const Change& change : changes_) {
    if (change.is_truncation) {
      synced_.resize(static_cast<size_t>(change.offset));
    } else {
      apply(synced_, change.offset, change.bytes.data(), std::ssize(change.bytes));
    }
  }
  changes_.clear();
  disk_.settle_names();
}

void* Disk::File::shared_region(size_t index, size_t bytes, bool extend) {
  if (index >= shared_.size()) {
    if (!extend) return nullptr;
    shared_.resize(index + 1);
  }
  if (shared_[index].empty()) shared_[index].resize(bytes);
  return shared_[index].data();
}

}  // namespace tessera::server::simulator
