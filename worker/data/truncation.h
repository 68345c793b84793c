// What max_length does to documents that are not packed, method by method.
#pragma once

namespace tessera {

// Which rows are left out where there is a max_length.
enum class LeftOut {
  kNone,
  kUnlabelled,    // of which no token counts that max_length leaves
  kLongPrompt,    // whose prompt alone, what stands before the first token that counts, fills it
  kLonger,        // that have a document beyond it
  kPromptCutOff,  // of which it leaves no token of a prompt
};

struct Truncation {
  bool keep_end = false;  // of documents that are too long; else their beginning stays
  LeftOut left_out = LeftOut::kUnlabelled;
};

}  // namespace tessera
