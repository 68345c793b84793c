// judge_program HELPER: reads a JobSpec in ProtoJSON, then questions, each a line; prints what
// comes of them, each a line. For python_test.py.
//
//   {"step": 3, "completions": [{"prompt": ..., "completion": ..., "record": {...}}]}
//   -> {"waiting": "..."} ..., then {"scores": [[0.5], ...]} or {"error": "...", "field": "..."}
#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "proto/spec/rules.h"
#include "worker/errors.h"
#include "worker/rewards/judge.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

void print(const Json& line) { std::cout << line.dump() << std::endl; }

struct Question {
  int step = 0;
  std::vector<std::string> records;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<JudgedCompletion> completions;

  explicit Question(const Json& json) : step(json.at("step")) {
    for (const Json& row : json.at("completions")) {
      records.push_back(row.at("record").dump());
      tokens.push_back(row.value("completion_ids", std::vector<int32_t>{}));
    }
    for (size_t i = 0; i < records.size(); ++i) {
      const Json& row = json["completions"][i];
      completions.push_back({.prompt = row.at("prompt"),
                             .completion = row.at("completion"),
                             .completion_ids = tokens[i],
                             .record = records[i]});
    }
  }
};

Json rows_of(const std::vector<float>& scores, size_t num_columns) {
  Json rows = Json::array();
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i % num_columns == 0) rows.push_back(Json::array());
    rows.back().push_back(std::isnan(scores[i]) ? Json() : Json(scores[i]));
  }
  return rows;
}

int run(const char* helper) {
  std::string line;
  v1::JobSpec spec;
  std::getline(std::cin, line);
  if (!google::protobuf::util::JsonStringToMessage(line, &spec).ok()) return 2;
  spec::fill_defaults(spec);
  Judges judges(spec,
                {.job_id = "job",
                 .on_waiting = [](const std::string& reason) { print({{"waiting", reason}}); }},
                helper);
  while (std::getline(std::cin, line)) {
    const Question question(Json::parse(line));
    try {
      print({{"scores", rows_of(judges.judge(question.completions, question.step),
                                static_cast<size_t>(spec.reward_funcs_size()))}});
    } catch (const UserError& error) {
      print({{"error", error.what()}, {"field", error.field()}});
    }
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return argc == 2 ? tessera::run(argv[1]) : 2; }
