// A disk in memory that SQLite writes to: the default file system of this process while a Disk
// lives, so that the store's own code runs on it unchanged.
//
// It knows what a real one promises: a write is there for who reads it, and on the disk once the
// file was synced. When power fails, of what was written since then each sector is there or is not,
// whatever the order of the writes, and some are there in part; so with truncations. Names of files
// that were made or deleted since any file was synced are there or are not (a journaling file
// system keeps their order). Bytes beside those that were written stay as they were (SQLite assumes
// it of any disk, as SQLITE_IOCAP_POWERSAFE_OVERWRITE).
//
// One connection at a time: locks are not kept. Not thread safe.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/simulator/world.h"

namespace tessera::server::simulator {

class Disk {
 public:
  // SQLite moves what is committed from its log to the database each `checkpoint_pages`.
  Disk(World& world, int checkpoint_pages);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // From now on nothing reaches the disk, though who writes does not notice: the process is killed,
  // and all that it wrote is there, or power fails. Only the first of these counts.
  void kill();
  void fail_power();
  // Power fails at the operation that comes after so many others: writes, syncs, truncations,
  // deletions. Negative: it does not.
  void fail_power_after(int64_t num_operations);
  int64_t num_operations() const { return num_operations_; }
  // The files are what reached the disk. Requires: all are closed.
  void restart();

  // Of SQLite's calls, by their names there.
  class File;
  std::shared_ptr<File> open(const std::string& name, bool create);
  void remove(const std::string& name, bool sync);
  bool exists(const std::string& name) const;
  int64_t draw() { return static_cast<int64_t>(bytes_()); }

 private:
  friend class File;
  using Files = std::map<std::string, std::shared_ptr<File>>;
  enum class Survival { kNothing, kSome, kUpToAPoint };

  // Before an operation takes effect. True: power fails in the middle of it.
  bool fails_now();
  void settle_names();
  std::string survivor(const File& file);

  World& world_;
  const std::unique_ptr<sqlite3_vfs> vfs_;
  sqlite3_vfs* const system_vfs_;
  std::mt19937_64 bytes_{1};  // of SQLite's own wants
  Files files_;
  // Deleted, and not for certain.
  Files deleted_;
  int64_t operations_left_ = -1;  // before power fails; negative: it does not
  int64_t num_operations_ = 0;
  bool dead_ = false;
  std::map<std::string, std::string> image_;  // of the dead
};

class Disk::File {
 public:
  explicit File(Disk& disk) : disk_(disk) {}

  const std::string& content() const { return content_; }
  void write(int64_t offset, const void* bytes, int64_t count);
  void truncate(int64_t size);
  void sync();
  // Shared memory beside the file, which no crash outlives.
  void* shared_region(size_t index, size_t bytes, bool extend);
  void drop_shared() { shared_.clear(); }

 private:
  friend class Disk;
  // Since the last sync; no bytes: the file was made so long.
  struct Change {
    int64_t offset;
    std::string bytes;
    bool is_truncation = false;
  };

  Disk& disk_;
  std::string content_;
  // As of the last sync, and whether the file's name is on the disk for certain.
  std::string synced_;
  bool is_named_ = false;
  std::vector<Change> changes_;
  std::vector<std::vector<std::byte>> shared_;
};

// SQLite's table of functions over `disk`.
std::unique_ptr<sqlite3_vfs> make_vfs(Disk& disk, const sqlite3_vfs& system);

}  // namespace tessera::server::simulator
