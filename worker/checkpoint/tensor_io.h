// Tensors to and from files, through a bounded buffer wherever they are not plain memory already.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/checkpoint/durable_files.h"
#include "worker/model/safetensors.h"

namespace tessera {

// Writes the elements of a contiguous tensor, converted to `dtype`, at byte `offset`.
void write_tensor(OutputFile& file, int64_t offset, const at::Tensor& tensor, at::ScalarType dtype);

// Fills a contiguous tensor on any device with elements [begin, begin + out.numel()) of a stored
// one.
void read_tensor(const SafetensorsFile& file, const std::string& name, int64_t begin,
                 at::Tensor out);

}  // namespace tessera
