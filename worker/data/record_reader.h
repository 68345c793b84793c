// Files of records, read block by block: memory does not grow with the file.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "worker/data/record.h"
#include "worker/errors.h"

namespace tessera {

// Some records of a file, one after the other. Used by one thread at a time; it owns what it needs,
// so blocks of one reader may be read by several threads at once.
class RecordBlock {
 public:
  virtual ~RecordBlock() = default;
  // The next record, valid until the next call; null after the last. Throws UserError naming the
  // place of a record that is malformed.
  virtual const Record* next() = 0;
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // The blocks of the file in order, each about a quarter of a MiB; null at the end. Throws
  // UserError: the file is malformed or cannot be read.
  virtual std::unique_ptr<RecordBlock> next_block() = 0;
};

// What a file is read for: `field` of the job file is what errors are charged to.
struct RecordFile {
  std::filesystem::path path;
  std::string field;

  // Throws UserError "PATH: problem".
  [[noreturn]] void fail(const std::string& problem) const {
    throw UserError(field, path.string() + ": " + problem);
  }
};

inline constexpr size_t kRecordBlockBytes = size_t{256} << 10;
inline constexpr size_t kMaxLineBytes = size_t{64} << 20;

// Parquet where the file begins as one, else JSONL: a JSON object a line, blank lines skipped, as
// datasets' json loader does. Throws UserError: not there, not a regular file, not readable.
std::unique_ptr<RecordReader> open_records(const RecordFile& file);

std::unique_ptr<RecordReader> open_jsonl(const RecordFile& file);
std::unique_ptr<RecordReader> open_parquet(const RecordFile& file);

}  // namespace tessera
