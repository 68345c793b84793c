// SentencePiece's tokenizer.model.
#include <stdexcept>

#include "tests/fuzz/fuzz.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const fuzz::Directory directory;
  directory.write("tokenizer.model", fuzz::text_of(data, size));
  directory.write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  try {
    const Tokenizer tokenizer(directory.path());
    Encoder encoder(tokenizer);
    std::vector<int32_t> ids;
    encoder.encode("Hello  wörld, 12 am <s>", ids);
    tokenizer.decode(ids);
  } catch (const std::runtime_error&) {  // UserError is one
  }
  return 0;
}
