#include "worker/generate/request.h"

#include <cmath>
#include <sstream>

#include "worker/errors.h"

namespace tessera {
namespace {

template <typename Value>
void require(bool holds, const std::string& field, Value value, const char* rule) {
  if (holds) return;
  std::ostringstream text;
  text << field << " is " << value << ", must be " << rule;
  throw UserError(field, text.str());
}

}  // namespace

void check_sampling(const SamplingParams& s, const std::string& field) {
  require(std::isfinite(s.temperature) && s.temperature >= 0, field + ".temperature", s.temperature,
          "0 or more");
  require(s.top_k >= 0, field + ".top_k", s.top_k, "0 or more");
  require(s.top_p > 0 && s.top_p <= 1, field + ".top_p", s.top_p, "above 0 and at most 1");
  require(s.min_p >= 0 && s.min_p <= 1, field + ".min_p", s.min_p, "from 0 to 1");
  require(std::isfinite(s.repetition_penalty) && s.repetition_penalty > 0,
          field + ".repetition_penalty", s.repetition_penalty, "above 0");
  require(s.max_new_tokens >= 1, field + ".max_new_tokens", s.max_new_tokens, "1 or more");
  for (const std::string& text : s.stop_strings)
    require(!text.empty(), field + ".stop_strings", "\"\"", "a text of at least one character");
}

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopString:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

}  // namespace tessera
