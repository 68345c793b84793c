// Prints what the tokenizer makes of each line of a JSONL file, one JSON list a line:
// [ids, [[begin, end] ...], decoded, decoded without special tokens]. For compare_tokenizers.py,
// which holds it against Hugging Face's tokenizers.
//
//   tokenizer_dump TOKENIZER_DIRECTORY TEXTS.jsonl
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "worker/data/jsonl.h"
#include "worker/data/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: tokenizer_dump TOKENIZER_DIRECTORY TEXTS.jsonl\n";
    return 2;
  }
  try {
    const tessera::Tokenizer tokenizer(argv[1]);
    const tessera::JsonlFile file(argv[2], "texts");
    tessera::JsonlParser parser(file);
    tessera::Encoder encoder(tokenizer);
    for (const auto& line : file.lines()) {
      std::vector<int32_t> ids;
      std::vector<tessera::Span> offsets;
      encoder.encode(parser.string(line, "text"), ids, offsets);
      std::vector<int32_t> untracked;
      encoder.encode(parser.string(line, "text"), untracked);
      if (untracked != ids) throw std::runtime_error("ids depend on whether offsets are asked for");
      auto spans = nlohmann::json::array();
      for (const auto& offset : offsets) spans.push_back({offset.begin, offset.end});
      const nlohmann::json row{ids, spans, tokenizer.decode(ids), tokenizer.decode(ids, true)};
      std::cout << row.dump() << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
