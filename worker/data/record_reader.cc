#include "worker/data/record_reader.h"

#include <string_view>

#include "worker/data/file_descriptor.h"

namespace tessera {

std::unique_ptr<RecordReader> open_records(const RecordFile& file) {
  constexpr std::string_view kParquet = "PAR1";
  const FileDescriptor opened = open_regular_file(file.path, file.field);
  char begin[kParquet.size()];
  const size_t size = read_at(opened.get(), begin, sizeof begin, 0);
  return std::string_view(begin, size) == kParquet ? open_parquet(file) : open_jsonl(file);
}

}  // namespace tessera
