// Text of jobs and models on its way to logs.
#include "proto/spec/redact.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const std::string once = spec::redact(fuzz::text_of(data, size));
  fuzz::require(spec::redact(once) == once, "what was redacted holds no more secrets");
  return 0;
}
