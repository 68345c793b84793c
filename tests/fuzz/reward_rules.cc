// Rules of rewards: a pattern of the user's, the record's answer, and text that a model wrote.
#include "worker/rewards/rules.h"

#include "tests/fuzz/fuzz.h"
#include "worker/errors.h"
#include "worker/rewards/code_block.h"
#include "worker/rewards/decimal.h"
#include "worker/rewards/json_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto [pattern, answer, completion] = fuzz::parts_of<3>(fuzz::text_of(data, size));
  last_code_block(completion);
  parse_json(completion);
  const auto number = parse_decimal(completion);
  fuzz::require(number == parse_decimal(completion), "numbers are themselves");
  v1::ExactAnswerReward exact;
  if (!pattern.empty()) exact.set_pattern(std::string(pattern));
  exact.set_answer_field("answer");
  exact.set_ignore_case(true);
  exact.set_numeric(size % 2 == 0);
  v1::RegexReward regex;
  regex.set_pattern(std::string(pattern));
  // A record is a JSON object that a reader has read.
  const std::string record = nlohmann::json{{"answer", answer}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
  const JudgedCompletion judged{
      .prompt = "", .completion = std::string(completion), .record = record};
  try {
    make_exact_answer(exact, "reward_funcs[0]")->score(judged);
    make_regex(regex, "reward_funcs[1]")->score(judged);
    make_format({})->score(judged);
  } catch (const UserError&) {
  }
  return 0;
}
