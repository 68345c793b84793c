// Datasets of a test's own files, with the small tokenizer of fixtures/qwen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/worker/data/fixtures.h"
#include "worker/data/dataset.h"
#include "worker/data/tokenizer.h"

namespace tessera {

inline DatasetOptions dataset_of(std::vector<std::filesystem::path> paths) {
  DatasetOptions options;
  options.sources.push_back({.paths = std::move(paths)});
  options.examples.tokenizer = fixture("qwen");
  options.num_threads = 1;
  return options;
}

// A line {"text": ...} each.
inline std::string text_lines(const std::vector<std::string>& texts) {
  std::string lines;
  for (const auto& text : texts) lines += nlohmann::json{{"text", text}}.dump() + "\n";
  return lines;
}

inline std::vector<std::string> decoded_rows(const Dataset& dataset) {
  const Tokenizer tokenizer(fixture("qwen"));
  std::vector<std::string> rows;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    rows.push_back(tokenizer.decode(dataset.row(i).tokens));
  }
  return rows;
}

}  // namespace tessera
