// State in files of this machine: SQLite in WAL mode with synchronous=FULL, so that what commit()
// returned for survives kill -9 and power loss.
#pragma once

#include <filesystem>
#include <memory>
#include <utility>

#include "server/jobs/database.h"

namespace tessera::server {

class SqliteStorage final : public Storage {
 public:
  // Files are DIRECTORY/NAME.db, NAME that of their schema.
  explicit SqliteStorage(std::filesystem::path directory) : directory_(std::move(directory)) {}

  absl::StatusOr<std::unique_ptr<Database>> open(const Schema& schema) override;
  std::unique_ptr<Database> open_reader(const Schema& schema) override;

 private:
  std::filesystem::path path_of(const Schema& schema) const {
    return directory_ / (schema.name + ".db");
  }

  const std::filesystem::path directory_;
};

// The same for one file, whatever its name.
absl::StatusOr<std::unique_ptr<Database>> open_sqlite(const std::filesystem::path& path,
                                                      const Schema& schema);
std::unique_ptr<Database> open_sqlite_reader(const std::filesystem::path& path);

// Whether the disk of a database has room for the next rounds, and a transaction reaches it. Throws
// DatabaseError: not so.
void try_writing(const std::filesystem::path& path);

}  // namespace tessera::server
