// Reading and writing safetensors, a part of a tensor at a time.
//
// Source: the format description of huggingface/safetensors: 8 bytes little-endian header length N, N
// bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}}, then the data. Files are hostile
// until parsed: sizes, offsets, overlaps and dtypes are checked against the file before anything is read.
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

// The weights of a Hugging Face directory: model.safetensors, or the files that
// model.safetensors.index.json names. Memory mapped; only what is read is ever resident.
class WeightFiles {
 public:
  // Throws UserError naming the file and what is wrong with it.
  static WeightFiles open(const std::filesystem::path& directory);
  WeightFiles(WeightFiles&&) noexcept;
  ~WeightFiles();

  const std::map<std::string, TensorInfo>& tensors() const;
  // Elements [begin, begin + out.numel()) of a tensor in row-major order, converted to out's dtype.
  void read(const std::string& name, int64_t begin, at::Tensor out) const;

 private:
  class Impl;
  explicit WeightFiles(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
