// model.safetensors.index.json, and the files that it names.
#include "tests/fuzz/fuzz.h"
#include "worker/errors.h"
#include "worker/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto [index, weights] = fuzz::parts_of<2>(fuzz::text_of(data, size));
  const fuzz::Directory directory;
  directory.write("model.safetensors.index.json", index);
  directory.write("a.safetensors", weights);
  try {
    WeightFiles::open(directory.path());
  } catch (const UserError&) {
  }
  return 0;
}
