// A safetensors file: its header, and what it says about the data.
#include "worker/model/safetensors.h"

#include <ATen/ops/empty.h>

#include "tests/fuzz/fuzz.h"
#include "worker/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  try {
    const SafetensorsFile tensors = SafetensorsFile::open(file.path(), "model.path");
    for (const auto& [name, info] : tensors.tensors()) {
      fuzz::require(info.numel >= 0 && static_cast<size_t>(info.numel) <= 2 * size,
                    "a tensor is no larger than its file");
      tensors.read(name, 0, at::empty({info.numel}, at::kFloat));
    }
  } catch (const UserError&) {
  }
  return 0;
}
