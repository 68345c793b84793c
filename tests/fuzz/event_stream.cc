// Files that ranks append to, events and output, as the agent reads them.
#include <google/protobuf/stubs/logging.h>

#include "tests/fuzz/fuzz.h"
#include "worker/agent/stream_tail.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  // Of text that is no UTF-8, on standard error.
  const google::protobuf::LogSilencer silence;
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  for (const v1::RankStream stream : {v1::RANK_STREAM_EVENTS, v1::RANK_STREAM_OUTPUT}) {
    agent::StreamTail tail(file.path(), stream, 0);
    while (true) {
      const int64_t before = tail.offset();
      const auto batch = tail.read(true);
      if (!batch.ok() || tail.offset() == before) break;
      fuzz::require(batch->begin_offset() == before && batch->end_offset() == tail.offset(),
                    "a batch says which bytes it is of");
    }
  }
  return 0;
}
