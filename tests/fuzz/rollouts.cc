// Recorded rollouts, and the lines that ranks send each other of them.
#include "worker/data/rollouts.h"

#include <stdexcept>

#include "tests/fuzz/fuzz.h"
#include "worker/data/rollout_lines.h"
#include "worker/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  DatasetOptions options;
  options.sources = {{.paths = {file.path()}, .field = "data.rollouts"}};
  options.vocab_size = 1000;
  try {
    const Rollouts read = read_rollouts(options);
    std::string lines;
    for (const Rollout& rollout : read.rollouts) {
      fuzz::require(!rollout.prompt.empty() && !rollout.completion.empty(), "tokens are there");
      lines += rollout_line(rollout, read.reward_names);
    }
    fuzz::require(parse_rollout_lines(lines, read.reward_names).size() == read.rollouts.size(),
                  "what was written is read");
  } catch (const UserError&) {
  }
  return 0;
}
