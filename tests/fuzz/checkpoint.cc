// A checkpoint: state.json, and the vectors that two ranks wrote.
#include <ATen/ops/empty.h>

#include "tests/fuzz/fuzz.h"
#include "worker/checkpoint/reader.h"
#include "worker/errors.h"

namespace {

constexpr int64_t kMaxNumel = 1 << 16;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto [state, first, second] = fuzz::parts_of<3>(fuzz::text_of(data, size));
  const fuzz::Directory directory;
  directory.write(kCheckpointStateFile, state);
  directory.write(checkpoint_rank_file(0), first);
  if (!second.empty()) directory.write(checkpoint_rank_file(1), second);
  try {
    CheckpointReader reader(directory.path(), "training.resume_from_checkpoint");
    reader.check_complete();
    for (const auto& [name, numel] : reader.state().vectors()) {
      if (numel > kMaxNumel) continue;
      reader.check_vector(name, numel);
      const at::Tensor half = at::empty({(numel + 1) / 2}, at::kFloat);
      for (int rank = 0; rank < 2; ++rank) {
        reader.load({{.name = name, .data = half, .numel = numel}}, rank);
        reader.load({{.name = name, .data = half, .numel = numel, .begin = numel / 2}}, rank);
      }
    }
  } catch (const UserError&) {
  }
  return 0;
}
