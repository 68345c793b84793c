// Prints what the engine makes of a file's records, one JSON list [tokens, mask] a line, for
// compare_formats.py. OPTIONS is a JSON object with fields of TRL's SFTConfig, and `tokenizer`.
//
//   print_examples DATA OPTIONS
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "worker/data/dataset.h"

namespace tessera {
namespace {

DatasetOptions options_of(const char* path, const nlohmann::json& given) {
  DatasetOptions options;
  options.sources.push_back({.paths = {path}});
  options.examples.tokenizer = given.at("tokenizer").get<std::string>();
  options.examples.text_field = given.value("dataset_text_field", "text");
  options.examples.eos_token = given.value("eos_token", "");
  if (given.contains("completion_only_loss")) {
    options.examples.completion_only_loss = given.at("completion_only_loss").get<bool>();
  }
  options.examples.assistant_only_loss = given.value("assistant_only_loss", false);
  options.examples.chat_template_path = given.value("chat_template_path", "");
  const auto& max_length = given.at("max_length");
  options.max_length = max_length.is_null() ? 0 : max_length.get<int64_t>();
  options.reports.note = [](const std::string& line) { std::cerr << line << '\n'; };
  return options;
}

void print_examples(const DatasetOptions& options) {
  const auto dataset = load_dataset(options);
  for (int64_t i = 0; i < dataset->size(); ++i) {
    Row row = dataset->row(i);
    if (row.loss_mask.empty()) row.loss_mask.assign(row.tokens.size(), 1);
    std::cout << nlohmann::json{row.tokens, row.loss_mask}.dump() << '\n';
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: print_examples DATA OPTIONS\n";
    return EXIT_FAILURE;
  }
  try {
    tessera::print_examples(tessera::options_of(argv[1], nlohmann::json::parse(argv[2])));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
