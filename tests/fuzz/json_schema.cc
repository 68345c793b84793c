// JSON schemas of rewards, and what models write for them.
#include "worker/rewards/json_schema.h"

#include <stdexcept>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto [schema, text] = fuzz::parts_of<2>(fuzz::text_of(data, size));
  const auto document = parse_json(schema);
  const auto value = parse_json(text);
  if (!document) return 0;
  try {
    const JsonSchema checked(*document);
    if (value) checked.allows(*value);
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
