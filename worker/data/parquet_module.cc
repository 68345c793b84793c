// Loads the Parquet reader when the first Parquet file is opened. Arrow's libparquet exports the
// symbols of its own OpenSSL and simdjson, which would take the place of the system's in a program
// that links it: it must stay in a scope of its own.
#include "worker/data/parquet_module.h"

#include <dlfcn.h>

#include <filesystem>

namespace tessera {
namespace {

OpenParquet* load(std::string& problem) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto module = program.parent_path().parent_path() / "lib" / kParquetModule;
  void* loaded = ::dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);  // for the process's life
  void* found = loaded != nullptr ? ::dlsym(loaded, kOpenParquetSymbol) : nullptr;
  if (found == nullptr) problem = ::dlerror();
  return reinterpret_cast<OpenParquet*>(found);
}

}  // namespace

std::unique_ptr<RecordReader> open_parquet(const RecordFile& file) {
  static std::string problem;
  static OpenParquet* const open = load(problem);
  if (open == nullptr) file.fail("the Parquet reader cannot be loaded: " + problem);
  return std::unique_ptr<RecordReader>(open(file));
}

}  // namespace tessera
