#include "worker/inspect/length_advice.h"

#include <algorithm>
#include <cstdio>
#include <string>

namespace tessera {
namespace {

// Tokens that may be cut off without mention of a longer row.
constexpr double kFewTokens = 0.005;
// Rows this full are full; others are worth a longer max_length that fills them by so much more.
constexpr double kFull = 0.95;
constexpr double kMuchFuller = 0.1;
// Documents that fill rows this well by themselves are not packed.
constexpr double kUniform = 0.98;

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string percent(double value) {
  char text[32];
  const bool is_small = value > 0 && value < 0.0005;
  std::snprintf(text, sizeof text, is_small ? "%.3f%%" : "%.1f%%", 100 * value);
  return text;
}

double fill(const v1::PackedRows& packed, int32_t max_length) {
  return share(packed.num_tokens(), packed.num_rows() * max_length);
}

double truncated(const v1::DataProfile& profile, const v1::LengthChoice& choice) {
  return share(choice.num_truncated_tokens(), profile.num_tokens());
}

const v1::PackedRows& rows_of(const v1::LengthChoice& choice, const std::string& strategy) {
  return *std::find_if(choice.packed().begin(), choice.packed().end(),
                       [&](const v1::PackedRows& rows) { return rows.strategy() == strategy; });
}

// Whole documents where next to none is cut, else pieces, of which no token is lost.
const v1::PackedRows& packing_for(const v1::DataProfile& profile, const v1::LengthChoice& choice) {
  return rows_of(choice, truncated(profile, choice) <= kFewTokens ? "bfd" : "bfd_split");
}

const v1::LengthChoice& choose(const v1::DataProfile& profile) {
  const auto& choices = profile.choices();
  const auto is_possible = [&](const v1::LengthChoice& choice) {
    return profile.context() == 0 || choice.max_length() <= profile.context();
  };
  const v1::LengthChoice* chosen = &choices.Get(0);
  for (const v1::LengthChoice& choice : choices) {
    if (!is_possible(choice)) break;
    chosen = &choice;
    if (truncated(profile, choice) <= kFewTokens) break;
  }
  if (chosen->packed().empty()) return *chosen;
  // Documents of a little over half a row leave the rest empty; longer rows are fuller.
  const v1::LengthChoice* fuller = chosen;
  const auto filled = [&](const v1::LengthChoice& choice) {
    return fill(packing_for(profile, choice), choice.max_length());
  };
  for (const v1::LengthChoice& choice : choices) {
    if (!is_possible(choice) || filled(*fuller) >= kFull) break;
    const bool is_longer = choice.max_length() > chosen->max_length();
    if (is_longer && filled(choice) >= filled(*fuller) + kMuchFuller) fuller = &choice;
  }
  return *fuller;
}

// Behind a number of documents.
std::string explain_lost(LeftOut left_out, const std::string& length) {
  switch (left_out) {
    case LeftOut::kUnlabelled:
      return " documents have nothing in their first " + length +
             " tokens that counts in the loss.";
    case LeftOut::kLongPrompt:
      return " documents are left out: their prompt alone has " + length + " tokens or more.";
    case LeftOut::kLonger:
      return " documents are longer, and left out with their pair.";
    case LeftOut::kPromptCutOff:
      return " documents are left out: their last " + length + " tokens hold none of the prompt.";
    case LeftOut::kNone:
      break;
  }
  return "";
}

void explain_length(const v1::DataProfile& profile, const v1::LengthChoice& choice,
                    LeftOut left_out, v1::LengthAdvice& advice) {
  const int64_t num_cut = choice.num_truncated_documents();
  const std::string length = std::to_string(choice.max_length());
  if (num_cut == 0) {
    advice.add_reasons("No document is longer than " + length + " tokens.");
  } else {
    advice.add_reasons(percent(share(num_cut, profile.num_documents())) +
                       " of the documents are longer than " + length + " tokens, with " +
                       percent(truncated(profile, choice)) + " of all tokens beyond it.");
  }
  if (choice.num_lost_documents() > 0) {
    advice.add_reasons(std::to_string(choice.num_lost_documents()) +
                       explain_lost(left_out, length));
  }
  if (profile.context() > 0 && truncated(profile, choice) > kFewTokens &&
      2 * int64_t{choice.max_length()} > profile.context()) {
    advice.add_reasons("The model is made for " + std::to_string(profile.context()) +
                       " tokens, so longer rows are not looked at.");
  }
}

void explain_packing(const v1::DataProfile& profile, const v1::LengthChoice& choice,
                     const v1::PackedRows& packed, v1::LengthAdvice& advice) {
  const int64_t kept = profile.num_tokens() - choice.num_truncated_tokens();
  advice.add_reasons(
      "Packed with " + packed.strategy() + ", rows are " +
      percent(fill(packed, choice.max_length())) + " full, and microbatches are of one size; " +
      "padded batches of " + std::to_string(profile.batch_rows()) + " would be " +
      percent(share(choice.num_padding_tokens(), kept + choice.num_padding_tokens())) +
      " padding, and without padding the largest holds " +
      std::to_string(choice.max_microbatch_tokens()) + " tokens where the mean is " +
      std::to_string(choice.mean_microbatch_tokens()) + ".");
  if (packed.strategy() == "bfd_split") {
    advice.add_reasons(percent(share(packed.num_split_documents(), profile.num_documents())) +
                       " of the documents are cut in pieces; no token is lost.");
  }
}

}  // namespace

void add_length_advice(v1::DataProfile& profile, LeftOut left_out) {
  if (profile.choices().empty() || profile.num_tokens() == 0) return;
  const v1::LengthChoice& choice = choose(profile);
  v1::LengthAdvice& advice = *profile.mutable_advice();
  advice.set_max_length(choice.max_length());
  explain_length(profile, choice, left_out, advice);
  if (choice.packed().empty()) {
    advice.set_packing_strategy("none");
    return;
  }
  const int64_t kept = profile.num_tokens() - choice.num_truncated_tokens();
  const double alone = share(kept, profile.num_documents() * choice.max_length());
  if (alone >= kUniform && truncated(profile, choice) <= kFewTokens) {
    advice.set_packing_strategy("none");
    advice.add_reasons(
        "Nearly every document fills a row by itself, so packing would change little.");
    return;
  }
  const v1::PackedRows& packed = packing_for(profile, choice);
  advice.set_packing_strategy(packed.strategy());
  explain_packing(profile, choice, packed, advice);
}

}  // namespace tessera
