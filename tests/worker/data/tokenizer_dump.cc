// Prints what the tokenizer makes of each line of a JSONL file, one JSON list a line:
// [ids, [[begin, end] ...], decoded, decoded without special tokens]. For compare_tokenizers.py,
// which holds it against Hugging Face's tokenizers.
//
//   tokenizer_dump TOKENIZER_DIRECTORY TEXTS.jsonl
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "worker/data/record_reader.h"
#include "worker/data/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: tokenizer_dump TOKENIZER_DIRECTORY TEXTS.jsonl\n";
    return 2;
  }
  try {
    const tessera::Tokenizer tokenizer(argv[1]);
    tessera::Encoder encoder(tokenizer);
    const auto reader = tessera::open_jsonl({argv[2], "texts"});
    auto block = reader->next_block();
    while (block != nullptr) {
      const tessera::Record* record = block->next();
      if (record == nullptr) {
        block = reader->next_block();
        continue;
      }
      std::vector<int32_t> ids;
      std::vector<tessera::Span> offsets;
      encoder.encode(record->string("text"), ids, offsets);
      std::vector<int32_t> untracked;
      encoder.encode(record->string("text"), untracked);
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
