// Data files of JSON lines.
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  try {
    fuzz::read_records(*open_jsonl({file.path(), "data.train"}));
  } catch (const UserError&) {
  }
  return 0;
}
