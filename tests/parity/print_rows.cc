// Prints the rows that the engine makes of a JSONL file, one JSON object a line, for rows_test.py:
//   print_rows DATA TOKENIZER_DIRECTORY MAX_LENGTH (none|bfd|bfd_split|wrapped)
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "worker/data/dataset.h"

namespace tessera {
namespace {

void print_list(const char* name, const std::vector<int32_t>& values) {
  std::cout << '"' << name << "\":[";
  for (size_t i = 0; i < values.size(); ++i) std::cout << (i == 0 ? "" : ",") << values[i];
  std::cout << ']';
}

void print_rows(const DatasetOptions& options) {
  const auto dataset = load_dataset(options);
  for (int64_t i = 0; i < dataset->size(); ++i) {
    const Row row = dataset->row(i);
    std::cout << '{';
    print_list("tokens", row.tokens);
    std::cout << ',';
    print_list("lengths", row.lengths);
    std::cout << "}\n";
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using tessera::PackingStrategy;
  const std::map<std::string, PackingStrategy> strategies = {
      {"none", PackingStrategy::kNone},
      {"bfd", PackingStrategy::kBfd},
      {"bfd_split", PackingStrategy::kBfdSplit},
      {"wrapped", PackingStrategy::kWrapped}};
  if (argc != 5 || !strategies.contains(argv[4])) {
    std::cerr
        << "usage: print_rows DATA TOKENIZER_DIRECTORY MAX_LENGTH none|bfd|bfd_split|wrapped\n";
    return EXIT_FAILURE;
  }
  try {
    tessera::DatasetOptions options;
    options.sources.push_back({.paths = {argv[1]}});
    options.examples.tokenizer = argv[2];
    options.max_length = std::stoll(argv[3]);
    options.packing = strategies.at(argv[4]);
    tessera::print_rows(options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
