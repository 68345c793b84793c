// tokenizer.json with the files beside it, and text through what they make.
#include "worker/data/tokenizer.h"

#include <stdexcept>

#include "tests/fuzz/fuzz.h"
#include "worker/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto [json, config, special, text] = fuzz::parts_of<4>(fuzz::text_of(data, size));
  const fuzz::Directory directory;
  directory.write("tokenizer.json", json);
  if (!config.empty()) directory.write("tokenizer_config.json", config);
  if (!special.empty()) directory.write("special_tokens_map.json", special);
  try {
    const Tokenizer tokenizer(directory.path());
    Encoder encoder(tokenizer);
    std::vector<int32_t> ids;
    std::vector<Span> offsets;
    encoder.encode(text.empty() ? "Hello  wörld, 12 am <s>" : text, ids, offsets);
    for (const int32_t id : ids) {
      fuzz::require(id >= 0 && id < tokenizer.vocab_size(), "ids are those of the vocabulary");
    }
    tokenizer.decode(ids);
    tokenizer.decode(ids, true);
  } catch (const std::invalid_argument&) {  // the text is not UTF-8
  } catch (const std::runtime_error&) {     // UserError; a pattern takes too long
  }
  return 0;
}
