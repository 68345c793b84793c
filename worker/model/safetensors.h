// Reading and writing safetensors, a part of a tensor at a time.
//
// Source: the format description of huggingface/safetensors: 8 bytes little-endian header length N,
// N bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}}, then the data. Files
// are hostile until parsed: sizes, offsets, overlaps and dtypes are checked against the file before
// anything is read. Data is read with pread, not mapped: a file that shrinks under us is an error
// and not a SIGBUS, and nothing of it ever counts as resident.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

struct TensorInfo {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t numel = 0;
};

// One open file. Reads are thread safe.
class SafetensorsFile {
 public:
  // `field` is the path in the job file that led here. Throws UserError naming the file and what is
  // wrong.
  static SafetensorsFile open(const std::filesystem::path& path, const std::string& field);
  // The same of an open file, which it takes; `path` is for errors.
  static SafetensorsFile open(int fd, const std::filesystem::path& path, const std::string& field);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::map<std::string, TensorInfo>& tensors() const;
  // Elements [begin, begin + out.numel()) of a tensor in row-major order, converted to out's dtype.
  // `out` is contiguous and on the CPU. Throws UserError when the file cannot be read any more.
  void read(const std::string& name, int64_t begin, at::Tensor out) const;

 private:
  class Impl;
  explicit SafetensorsFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The weights of a Hugging Face directory: model.safetensors, or the files that
// model.safetensors.index.json names. Files must lie in the directory, or be links into the
// repository of the Hugging Face cache that the directory is a snapshot of. Links are followed from
// a descriptor of that directory (openat2): one that is changed meanwhile leads nowhere else. They
// must be relative.
class WeightFiles {
 public:
  // Throws UserError("model.path", ...) naming the file and what is wrong with it.
  static WeightFiles open(const std::filesystem::path& directory);
  WeightFiles(WeightFiles&&) noexcept;
  ~WeightFiles();

  const std::map<std::string, TensorInfo>& tensors() const;
  // As SafetensorsFile::read.
  void read(const std::string& name, int64_t begin, at::Tensor out) const;

 private:
  class Impl;
  explicit WeightFiles(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A file to be written: `prefix` (length and header) stands at 0, the data of tensor i at
// offsets[i].
struct SafetensorsLayout {
  std::string prefix;
  std::vector<int64_t> offsets;
  int64_t file_bytes = 0;
};
// Tensors lie in the order given, without gaps, beginning at a multiple of 8 bytes.
SafetensorsLayout lay_out_safetensors(
    const std::vector<std::pair<std::string, TensorInfo>>& tensors);

}  // namespace tessera
