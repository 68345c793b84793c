// SQLite's functions of a file system, over a Disk.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/simulator/disk.h"

namespace tessera::server::simulator {
namespace {

constexpr char kName[] = "simulated";
constexpr int kMaxPath = 512;

// SQLite allocates the memory, and knows the first member.
struct OpenFile {
  sqlite3_file base;
  std::shared_ptr<Disk::File> file;
  Disk* disk;
  std::string delete_on_close;
};

OpenFile& opened(sqlite3_file* file) { return *reinterpret_cast<OpenFile*>(file); }
Disk& disk_of(sqlite3_vfs* vfs) { return *static_cast<Disk*>(vfs->pAppData); }

int close(sqlite3_file* file) {
  OpenFile& open = opened(file);
  if (!open.delete_on_close.empty()) open.disk->remove(open.delete_on_close, /*sync=*/false);
  std::destroy_at(&open);
  return SQLITE_OK;
}

int read(sqlite3_file* file, void* to, int count, sqlite3_int64 offset) {
  const std::string& content = opened(file).file->content();
  const auto there = std::clamp<int64_t>(std::ssize(content) - offset, 0, count);
  if (there > 0) std::memcpy(to, content.data() + offset, static_cast<size_t>(there));
  std::memset(static_cast<char*>(to) + there, 0, static_cast<size_t>(count - there));
  return there == count ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

int write(sqlite3_file* file, const void* bytes, int count, sqlite3_int64 offset) {
  opened(file).file->write(offset, bytes, count);
  return SQLITE_OK;
}

int truncate(sqlite3_file* file, sqlite3_int64 size) {
  opened(file).file->truncate(size);
  return SQLITE_OK;
}

int sync(sqlite3_file* file, int) {
  opened(file).file->sync();
  return SQLITE_OK;
}

int file_size(sqlite3_file* file, sqlite3_int64* size) {
  *size = std::ssize(opened(file).file->content());
  return SQLITE_OK;
}

int lock(sqlite3_file*, int) { return SQLITE_OK; }

int check_reserved_lock(sqlite3_file*, int* is_held) {
  *is_held = 0;
  return SQLITE_OK;
}

int file_control(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int sector_size(sqlite3_file*) { return 512; }
int device_characteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

int shm_map(sqlite3_file* file, int region, int bytes, int extend, void volatile** memory) {
  *memory = opened(file).file->shared_region(static_cast<size_t>(region),
                                             static_cast<size_t>(bytes), extend != 0);
  return SQLITE_OK;
}

int shm_lock(sqlite3_file*, int, int, int) { return SQLITE_OK; }
void shm_barrier(sqlite3_file*) { std::atomic_thread_fence(std::memory_order_seq_cst); }

// The one connection goes, and the memory with it.
int shm_unmap(sqlite3_file* file, int) {
  opened(file).file->drop_shared();
  return SQLITE_OK;
}

constexpr sqlite3_io_methods kMethods{.iVersion = 2,
                                      .xClose = close,
                                      .xRead = read,
                                      .xWrite = write,
                                      .xTruncate = truncate,
                                      .xSync = sync,
                                      .xFileSize = file_size,
                                      .xLock = lock,
                                      .xUnlock = lock,
                                      .xCheckReservedLock = check_reserved_lock,
                                      .xFileControl = file_control,
                                      .xSectorSize = sector_size,
                                      .xDeviceCharacteristics = device_characteristics,
                                      .xShmMap = shm_map,
                                      .xShmLock = shm_lock,
                                      .xShmBarrier = shm_barrier,
                                      .xShmUnmap = shm_unmap,
                                      .xFetch = nullptr,
                                      .xUnfetch = nullptr};

int open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  Disk& disk = disk_of(vfs);
  const std::string path = name == nullptr ? "" : name;
  file->pMethods = nullptr;
  auto found = disk.open(path, (flags & SQLITE_OPEN_CREATE) != 0);
  if (found == nullptr) return SQLITE_CANTOPEN;
  const bool is_temporary = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0;
  new (file) OpenFile{{&kMethods}, std::move(found), &disk, is_temporary ? path : ""};
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int remove(sqlite3_vfs* vfs, const char* name, int sync) {
  if (!disk_of(vfs).exists(name)) return SQLITE_IOERR_DELETE_NOENT;
  disk_of(vfs).remove(name, sync != 0);
  return SQLITE_OK;
}

int access(sqlite3_vfs* vfs, const char* name, int, int* is_there) {
  *is_there = disk_of(vfs).exists(name) ? 1 : 0;
  return SQLITE_OK;
}

int full_path(sqlite3_vfs*, const char* name, int count, char* path) {
  sqlite3_snprintf(count, path, "%s", name);
  return SQLITE_OK;
}

int randomness(sqlite3_vfs* vfs, int count, char* bytes) {
  std::generate_n(bytes, count, [vfs] { return static_cast<char>(disk_of(vfs).draw()); });
  return count;
}

}  // namespace

std::unique_ptr<sqlite3_vfs> make_vfs(Disk& disk, const sqlite3_vfs& system) {
  // Clocks and libraries are the system's.
  auto vfs = std::make_unique<sqlite3_vfs>(system);
  vfs->szOsFile = sizeof(OpenFile);
  vfs->mxPathname = kMaxPath;
  vfs->pNext = nullptr;
  vfs->zName = kName;
  vfs->pAppData = &disk;
  vfs->xOpen = open;
  vfs->xDelete = remove;
  vfs->xAccess = access;
  vfs->xFullPathname = full_path;
  vfs->xRandomness = randomness;
  return vfs;
}

}  // namespace tessera::server::simulator
