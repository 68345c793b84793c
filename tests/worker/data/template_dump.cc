// Renders each line of a JSONL file, {"template": ..., "variables": {...}, "now": ...}, and prints
// one JSON object a line: {"text": ..., "generated": [[begin, end] ...]}, or {"error": ...}. For
// compare_templates.py, which holds it against jinja2. With "training": true it is what
// training_template makes of the template.
//
//   template_dump CASES.jsonl
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "worker/data/jinja/template.h"
#include "worker/data/training_templates.h"

namespace {

using nlohmann::ordered_json;

ordered_json render(const tessera::jinja::Template& chat_template, const ordered_json& variables,
                    std::time_t now) {
  std::vector<std::pair<std::string, tessera::jinja::Value>> values;
  for (const auto& [name, value] : variables.items()) {
    values.emplace_back(name, tessera::jinja::from_json(value));
  }
  const auto rendered = chat_template.render(values, now);
  auto spans = ordered_json::array();
  for (const auto& range : rendered.generated) spans.push_back({range.begin, range.end});
  return {{"text", rendered.text}, {"generated", spans}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: template_dump CASES.jsonl\n";
    return 2;
  }
  std::ifstream file(argv[1]);
  std::string source;
  std::optional<tessera::jinja::Template> parsed;
  for (std::string line; std::getline(file, line);) {
    ordered_json row;
    try {
      const auto input = ordered_json::parse(line);
      if (const auto& next = input.at("template").get_ref<const std::string&>();
          !parsed || next != source) {
        parsed.reset();
        source = next;
        const bool is_training = input.value("training", false);
        parsed.emplace(is_training ? tessera::training_template(source).value() : source);
      }
      row = render(*parsed, input.at("variables"), input.at("now").get<std::time_t>());
    } catch (const tessera::jinja::Error& error) {
      row = {{"error", error.what()}};
    }
    std::cout << row.dump() << '\n';
  }
}
