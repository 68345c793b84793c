// Records of preferences: a prompt with a completion or two, and a label or margin.
#pragma once

#include <memory>
#include <string>

#include "worker/data/example_formats.h"
#include "worker/data/preference_source.h"

namespace tessera {

// What the values of a record's documents are.
enum class PreferenceValue {
  kNone,
  kLabel,   // of the field "label": 1 or 0
  kPair,    // 1 of the first document, 0 of the second
  kMargin,  // of the field "margin", on both; a record without one has 0
};

struct PreferenceFormatOptions {
  PreferenceFields fields;
  PreferenceValue value = PreferenceValue::kNone;
  bool masks_prompt = true;  // only tokens of completions count
  // The completions of a record begin at the same place: where the first of them parts from the
  // prompt.
  bool shares_prompt = false;
  std::string eos_token;                           // of text
  std::unique_ptr<const ChatTemplates> templates;  // of conversations; null: text
  std::string fingerprint;
};

std::unique_ptr<const ExampleFormat> make_preference_format(const Tokenizer& tokenizer,
                                                            PreferenceFormatOptions options,
                                                            Note note);

// Two fields that list the tokens of a document each.
std::unique_ptr<const ExampleFormat> make_pair_tokens_format(std::string chosen,
                                                             std::string rejected,
                                                             PreferenceValue value);

}  // namespace tessera
