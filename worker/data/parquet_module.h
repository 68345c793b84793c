// Between the program and the module that reads Parquet: lib/libtessera_parquet.so beside the
// program's own directory.
#pragma once

#include "worker/data/record_reader.h"

namespace tessera {

inline constexpr const char* kParquetModule = "libtessera_parquet.so";
inline constexpr const char* kOpenParquetSymbol = "tessera_open_parquet";

// The caller owns the reader.
using OpenParquet = RecordReader*(const RecordFile& file);

}  // namespace tessera
