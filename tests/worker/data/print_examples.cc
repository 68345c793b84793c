// Prints what the engine makes of a file's records as record_formats.py writes it, for
// compare_formats.py. OPTIONS is a JSON object with fields of the TRL trainer's config, `trainer`
// and `tokenizer`.
//
//   print_examples DATA OPTIONS
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "worker/data/dataset.h"

namespace tessera {
namespace {

RecordKind kind_of(const std::string& trainer) {
  if (trainer == "dpo") return RecordKind::kDpo;
  if (trainer == "kto") return RecordKind::kKto;
  if (trainer == "reward") return RecordKind::kReward;
  if (trainer == "gkd") return RecordKind::kGkd;
  return RecordKind::kSft;
}

DatasetOptions options_of(const char* path, const nlohmann::json& given) {
  DatasetOptions options;
  options.sources.push_back({.paths = {path}});
  options.examples.kind = kind_of(given.at("trainer").get<std::string>());
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
  options.keep_end = given.value("truncation_mode", "") == "keep_end";
  if (options.examples.kind == RecordKind::kKto && given.value("loss_type", "kto") == "kto") {
    options.rotation_rows = given.at("per_device_train_batch_size").get<int64_t>();
  }
  options.reports.note = [](const std::string& line) { std::cerr << line << '\n'; };
  return options;
}

// A list [tokens, mask, value] a document.
nlohmann::json documents_of(const Row& row) {
  nlohmann::json documents = nlohmann::json::array();
  auto token = row.tokens.begin();
  for (size_t i = 0; i < row.lengths.size(); ++i) {
    const auto length = static_cast<size_t>(row.lengths[i]);
    const auto begin = token - row.tokens.begin();
    std::vector<uint8_t> mask(length, 1);
    if (!row.loss_mask.empty()) std::copy_n(row.loss_mask.begin() + begin, length, mask.begin());
    documents.push_back({std::vector<int32_t>(token, token + row.lengths[i]), mask, nullptr});
    if (!row.values.empty()) documents.back()[2] = row.values[i];
    token += row.lengths[i];
  }
  return documents;
}

nlohmann::json rows_of(const Dataset& dataset) {
  nlohmann::json rows = nlohmann::json::array();
  for (int64_t i = 0; i < dataset.size(); ++i) rows.push_back(documents_of(dataset.row(i)));
  return rows;
}

void print_examples(const DatasetOptions& options) {
  const auto dataset = load_dataset(options);
  nlohmann::json rows = rows_of(*dataset);
  if (options.examples.kind == RecordKind::kSft) {
    for (auto& row : rows) row = {row[0][0], row[0][1]};
  } else if (dataset->mismatched() != nullptr) {
    rows = {{"rows", rows}, {"mismatched", rows_of(*dataset->mismatched())}};
  }
  std::cout << rows.dump() << '\n';
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
